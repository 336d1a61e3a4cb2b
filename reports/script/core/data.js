// The data that Python embedded (parabench/report/page.py). A table has `n`, the number of rows, and a list for each column.
const embedded = (id) => JSON.parse(document.getElementById(id)?.textContent || "null");

export const data = embedded("data") || {};
export const cases = data.cases || { n: 0 };
// In the order of the run. `case` is null if the case is not in the tables, as for a reference launch.
export const launches = data.launches || { n: 0 };
export const figures = embedded("figures") || {};

// {id of a case: its row}.
export const rowOf = new Map();
for (let i = 0; i < cases.n; i += 1) rowOf.set(cases.case_id[i], i);
