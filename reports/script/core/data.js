// The data that Python embedded (parabench/report/page.py); a table has n rows, and a list for each column.
const embedded = (id) => JSON.parse(document.getElementById(id)?.textContent || "null");

export const data = embedded("data") || {};
export const cases = data.cases || { n: 0 };
// In run order; a launch whose case is not in the tables, such as a reference launch, has the case null.
export const launches = data.launches || { n: 0 };
export const figures = embedded("figures") || {};
// A page of collectives: the results of each case at each size, by the row of the case.
export const busSizes = data.sizes || { n: 0 };
export const hasDetails = Boolean(data.details);

// The row of a case by its id.
export const rowOf = new Map();
for (let i = 0; i < cases.n; i += 1) rowOf.set(cases.case_id[i], i);
