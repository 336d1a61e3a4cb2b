// The data that Python embedded (parabench/report/page.py); a table has n rows, and a list for each column.
const embedded = (id) => JSON.parse(document.getElementById(id)?.textContent || "null");

export const data = embedded("data") || {};
export const cases = data.cases || { n: 0 };
// As they ran; a launch whose case is not in the tables (a reference, say) has the case null.
export const launches = data.launches || { n: 0 };
export const figures = embedded("figures") || {};
// A page of collectives: what each case took at each size, by the case's row.
export const busSizes = data.sizes || { n: 0 };

// The row of a case by its id, and the rows of its launches.
export const rowOf = new Map();
for (let i = 0; i < cases.n; i += 1) rowOf.set(cases.case_id[i], i);
export const launchesOf = Array.from({ length: cases.n }, () => []);
for (let i = 0; i < launches.n; i += 1) launchesOf[launches.case[i]]?.push(i);

// Rows by what `key` says of them, in the order in which they first appear.
export const groupBy = (rows, key) => {
  const groups = new Map();
  for (const row of rows) {
    const name = key(row);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(row);
  }
  return groups;
};
export const distinct = (values) => [...new Set(values)];

// A page of several sides: their names, and a side's column.
export const sides = data.sides || [];
export const sideColumn = (name, side) => cases[`${name}.${side}`];

const BLOCKS = { "-1": "reference", "-2": "explaining" };
export const blockName = (block) => BLOCKS[block] || String(block);

// Whether a launch counts.
export const counts = (i) => launches.counts[i] === 1;
