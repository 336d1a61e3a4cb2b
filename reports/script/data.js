// What is known, as Python embedded it (parabench/report/data/columns.py packs, this unpacks).
const embedded = (id) => JSON.parse(document.getElementById(id)?.textContent || "null");

const unpackColumn = (column, n) => {
  if (Array.isArray(column)) return column;
  if ("all" in column) return new Array(n).fill(column.all);
  if ("from" in column) return Array.from({ length: n }, (_, i) => column.from + i);
  if ("times" in column) return column.of.map((value) => (value === null ? null : value * column.times));
  return column.of.map((at) => column.values[at]);
};

const unpack = (table) => {
  const columns = { n: table.n };
  for (const [name, column] of Object.entries(table)) {
    if (name !== "n") columns[name] = unpackColumn(column, table.n);
  }
  return columns;
};

const data = embedded("data") || {};
const cases = unpack(data.cases || { n: 0 });
const launches = unpack(data.launches || { n: 0 });
const figures = embedded("figures") || {};

// The row of a case by its id, and the rows of its launches.
const rowOf = new Map();
for (let i = 0; i < cases.n; i += 1) rowOf.set(cases.case_id[i], i);
const launchesOf = Array.from({ length: cases.n }, () => []);
for (let i = 0; i < launches.n; i += 1) launchesOf[launches.case[i]].push(i);

// Rows by what `key` says of them, in the order in which they first appear.
const groupBy = (rows, key) => {
  const groups = new Map();
  for (const row of rows) {
    const name = key(row);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(row);
  }
  return groups;
};
const distinct = (values) => [...new Set(values)];
