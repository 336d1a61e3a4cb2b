// The tables of the page: Python declares their columns and those of their files (parabench/report/spec.py, Column);
// here is how their cells are made.
import { caseButton, errorLine, marginMs, statusTag, subLine, tagsOf } from "../core/cases.js";
import { blockName, busSizes, cases, data, launches } from "../core/data.js";
import { element } from "../core/element.js";
import { intervalOf, known, say, sizeText, times } from "../core/format.js";
import { selected, selectedSet, state } from "../core/state.js";

// Whether a row has a case that can be opened; `of` are cases, or launches, of which some belong to none.
const caseOf = (of, i) => (of === launches ? launches.case[i] : i);
const named = (of, i) => {
  const row = caseOf(of, i);
  return row !== null && (cases.rerun || data.sides) ? caseButton(row) : element("span", { class: "name" }, of.label[i]);
};

// By a column's format: (value, its row, the values beside it, the table) => what the cell shows. Those of `say` are
// numbers; of these, all but NUMBERS are words.
const CELLS = {
  text: (value) => value || "",
  outcome: (value) => value || "–",
  worded: (value, i, [words, bad]) => (bad ? element("span", { class: "status bad" }, words || "–") : words || "–"),
  case: (value, i, [note], of) => [named(of, i), ...(of === cases && cases.rerun ? tagsOf(i) : []), subLine(note)],
  status: (value, i, [bad]) => statusTag(value, bad),
  error: (value) => errorLine(value),
  block: (value) => blockName(value),
  size: (value) => sizeText(value),
  wrong: (value) => (value > 0 ? element("span", { class: "status bad" }, say.count(value)) : say.count(value)),
  margin_ms: (value, i) => (known(value) ? marginMs(i) : "–"),
  of: (value, i, [all]) => (known(value) ? `${say.count(value)} of ${say.count(all)}` : "–"),
  range_ms: (value, i, [high]) => (known(value) ? `${say.ms(value)} to ${say.ms(high)}` : "–"),
  pair: (value, i, [other]) => `${say.count(value)}, ${say.count(other)}`,
  // Of a side, how the case ended there stands in the place of a number that it lacks.
  ms: (value, i, [status]) => (known(value) || status === undefined ? say.ms(value)
    : element("span", { class: "status bad" }, status || "not measured")),
  times: (value, i, [low, high]) => (known(value) ? [times(value), subLine(known(low) ? intervalOf(low, high) : "")] : "–"),
};
const WORDS = ["text", "outcome", "case", "status", "error"];

const columnOf = (of, { name, head, format, beside }) => {
  const cell = CELLS[format] || say[format];
  return {
    name, head, format, text: WORDS.includes(format), values: of[name],
    cell: (i) => cell(of[name][i], i, beside.map((other) => of[other][i]), of),
  };
};
// Some columns of a table that Python declares, over the rows of `of`.
export const columnsOf = (table, of, names = null) => data.tables[table].columns
  .filter(({ name }) => !names || names.includes(name)).map((column) => columnOf(of, column));

const tableOf = (name, of, more = {}) => () => ({
  initial: data.tables[name].initial, rows: selected, columns: columnsOf(name, of), ...more,
  csv: () => data.tables[name].csv.map(([head, column]) => [head, of[column]]),
});

const places = (table) => Array.from({ length: table.n }, (_, i) => i);
const launchRows = () => {
  const chosen = selectedSet();
  return places(launches).filter((i) => !state.filters.size || chosen.has(launches.case[i]));
};
const sizeRows = () => places(busSizes).filter((i) => selectedSet().has(busSizes.case[i]));

// By the name that a section gives its table.
export const declared = {
  cases: tableOf("cases", cases, { good: (row) => cases.ranking[row] }),
  launches: tableOf("launches", launches, { rows: launchRows }),
  sizes: tableOf("sizes", busSizes, { rows: sizeRows }),
  sides: tableOf("sides", cases),
  gate: tableOf("gate", cases),
};
