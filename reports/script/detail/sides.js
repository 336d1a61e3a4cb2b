// What several sides know of one case, a row a side.
import { subLine } from "../core/cases.js";
import { data, sideColumn, sides } from "../core/data.js";
import { element, part } from "../core/element.js";
import { known } from "../core/format.js";
import { columnsOf } from "../table/columns.js";

// The columns of the table with a side's values; the first side stands beside itself.
const columnsOfSide = (side) => {
  const of = Object.fromEntries(data.tables.side.columns.flatMap(({ name, beside }) => [name, ...beside])
    .map((name) => [name, sideColumn(name, side) ?? []]));
  return columnsOf("side", of).map((column) => (!side && column.format === "times" ? { ...column, cell: () => "1" } : column));
};

const sidesTable = (row) => {
  const told = sides.map((_, side) => columnsOfSide(side));
  const there = told[0].map((_, i) => i).filter((i) => told.some((columns) => known(columns[i].values[row])));
  return element(
    "div", { class: "scroll", role: "region", "aria-label": "On each side", tabindex: "0" },
    element("table", {}, element("thead", {}, element(
      "tr", {}, element("th", { scope: "col", class: "t" }, "Side"),
      ...there.map((i) => element("th", { scope: "col", class: "n" }, told[0][i].head)),
    )), element("tbody", {}, ...sides.map((name, side) => element(
      "tr", {}, element("td", {}, element("span", { class: "name" }, name), subLine(
        [sideColumn("status", side) ? sideColumn("status", side)[row] || "not measured" : "", sideColumn("change", side)?.[row]].filter(Boolean).join(", "),
      )),
      ...there.map((i) => element("td", { class: "n" }, ...[told[side][i].cell(row)].flat())),
    )))),
  );
};

export const sidesDetail = (row, { tables }) => [
  part("On each side", sidesTable(row), element(
    "p", { class: "caption" }, `“Times” is the step beside that of ${sides[0]}, with the 95% interval of this case alone. `
      + "Each launch, its parts and its timeline stand in the side’s own report.",
  )),
  tables,
];
