// The tables of the page. Python declares their columns and cells (Column in parabench/report/spec.py). A cell is text, or
// {text, sub: a second line, bad: whether it is highlighted}.
import { cases, data, launches } from "../core/data.js";
import { element } from "../core/element.js";
import { openCase, selected, selectedSet, state } from "../core/state.js";

const MOST = 120;  // characters of an error's first line
const errorLine = (text) => {
  const line = text.split("\n", 1)[0];
  return element("div", { class: "error" }, line.length > MOST ? `${line.slice(0, MOST - 1)}…` : line);
};
// The name of a case, a button that opens its details, and its rank. Some launches do not belong to a case of the tables.
const nameOf = (of, i) => {
  const row = of === launches ? launches.case[i] : i;
  if (row === null) return [element("span", { class: "name" }, of.label[i])];
  const name = element("button", { type: "button", class: "name", onclick: () => openCase(cases.case_id[row]) }, of.label[i]);
  const tags = of === cases ? [[cases.ranking?.[row], "tag"], [cases.mark?.[row], "tag plain"]] : [];
  return [name, ...tags.filter(([text]) => text).flatMap(([text, kind]) => [" ", element("span", { class: kind }, text)])];
};
const partsOf = (cell) => (typeof cell === "string" ? [cell]
  : [cell.bad ? element("span", { class: "status bad" }, cell.text) : cell.text, cell.sub ? element("div", { class: "advice" }, cell.sub) : null]);

const columnOf = (of, { name, head, format, cells }) => ({
  name, head, text: format !== "", values: of[name],
  cell: (i) => {
    if (format === "case") return nameOf(of, i);
    return format === "error" ? [cells[i] ? errorLine(cells[i]) : ""] : partsOf(cells[i]);
  },
});
const tableOf = (name, of, rows = selected, good = null) => () => ({
  initial: data.tables[name].initial, rows, good, columns: data.tables[name].columns.map((column) => columnOf(of, column)),
  csv: () => data.tables[name].csv.map(([head, column]) => [head, of[column]]),
});

const rowsWhere = (table, keep) => () => Array.from({ length: table.n }, (_, i) => i).filter(keep);
const launchRows = rowsWhere(launches, (i) => !state.filters.size || selectedSet().has(launches.case[i]));

// The tables by the name that a section uses.
export const declared = {
  cases: tableOf("cases", cases, selected, (row) => cases.ranking[row]),
  launches: tableOf("launches", launches, launchRows),
};
