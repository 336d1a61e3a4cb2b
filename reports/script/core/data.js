// The data that Python embedded (parabench/report/page.py); a table has n rows, and a list for each column.
const embedded = (id) => JSON.parse(document.getElementById(id)?.textContent || "null");

export const data = embedded("data") || {};
export const cases = data.cases || { n: 0 };
export const launches = data.launches || { n: 0 };
export const figures = embedded("figures") || {};
// A page of collectives: what each case took at each size, by the case's row.
export const busSizes = data.sizes || { n: 0 };

// The row of a case by its id, and the rows of its launches.
export const rowOf = new Map();
for (let i = 0; i < cases.n; i += 1) rowOf.set(cases.case_id[i], i);
export const launchesOf = Array.from({ length: cases.n }, () => []);
for (let i = 0; i < launches.n; i += 1) launchesOf[launches.case[i]].push(i);

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

// A page of several sides: who they are, those beside the first, and a side's column.
export const sides = data.sides || [];
export const others = sides.map((_, side) => side).slice(1);
export const sideColumn = (name, side) => cases[`${name}.${side}`];

// Every launch, those of no case in the tables last: references and what explains.
export const every = (() => {
  const { apart } = data;
  if (!apart) return { n: 0 };
  const column = (name) => (launches[name] || []).concat(apart[name] || []);
  const ran = { n: launches.n + apart.n };
  for (const name of Object.keys(launches)) if (name !== "n") ran[name] = column(name);
  for (const name of ["case_id", "label"]) {
    ran[name] = (launches.case || []).map((row) => cases[name][row]).concat(apart[name] || []);
  }
  return ran;
})();
// The rows of `every`, as they ran: those of no case only where nothing is filtered.
export const asTheyRan = Array.from({ length: every.n }, (_, i) => i).sort((a, b) => every.launch_id[a] - every.launch_id[b]);
const BLOCKS = { "-1": "reference", "-2": "explaining" };
export const blockName = (block) => BLOCKS[block] || String(block);

// Whether a launch counts.
export const counts = (i) => launches.counts[i] === 1;
