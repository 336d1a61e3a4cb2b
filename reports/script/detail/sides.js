// What several sides know of one case, a row a side.
import { subLine } from "../core/cases.js";
import { cases, data, sideColumn, sides } from "../core/data.js";
import { element, part } from "../core/element.js";
import { intervalOf, known, say, times } from "../core/format.js";

const sideCells = (row, side) => {
  const number = (name, said) => said(sideColumn(name, side)?.[row]);
  const ratio = (name) => {
    const [own, low, high] = [name, `${name}_low`, `${name}_high`].map((each) => sideColumn(each, side)?.[row]);
    return known(own) ? [times(own), subLine(known(low) ? intervalOf(low, high) : "no interval")] : "–";
  };
  return [
    ["Step ms", number("step_time_s", say.ms)],
    ["Times", side ? ratio("ratio") : "1"],
    ["Launches, ms", known(sideColumn("low_s", side)?.[row])
      ? `${number("low_s", say.ms)} to ${number("high_s", say.ms)}` : "–"],
    ["p90 ms", number("p90_s", say.ms)],
    [`${data.works[cases.work[row]].unit || "tokens"}/s`, number("tokens_per_s", say.rate)],
    ["Peak MiB", number("peak_memory_bytes", say.mib)],
    ["Launches ok", known(sideColumn("n_launches", side)?.[row])
      ? `${number("n_ok", say.count)} of ${number("n_launches", say.count)}` : "–"],
    ["Per GB, times", side && ratio("per_gb")],
    ["Per joule, times", side && ratio("per_joule")],
  ];
};

const sidesTable = (row) => {
  const told = sides.map((_, side) => sideCells(row, side));
  const there = told[0].map((_, i) => i).filter(
    (i) => told.some((cells) => cells[i][1] && cells[i][1] !== "–"),  // a column that no side can fill is none
  );
  return element(
    "div", { class: "scroll", role: "region", "aria-label": "On each side", tabindex: "0" },
    element("table", {}, element("thead", {}, element(
      "tr", {}, element("th", { scope: "col", class: "t" }, "Side"),
      ...there.map((i) => element("th", { scope: "col", class: "n" }, told[0][i][0])),
    )), element("tbody", {}, ...sides.map(({ name }, side) => element(
      "tr", {}, element("td", {}, element("span", { class: "name" }, name), subLine(
        [sideColumn("status", side) ? sideColumn("status", side)[row] || "not measured" : "", sideColumn("change", side)?.[row]].filter(Boolean).join(", "),
      )),
      ...there.map((i) => element("td", { class: "n" }, ...[told[side][i][1] || "1"].flat())),
    )))),
  );
};

export const sidesDetail = (row, { tables }) => [
  part("On each side", sidesTable(row), element(
    "p", { class: "caption" }, `“Times” is the step beside that of ${sides[0].name}, with the 95 % interval of this case alone. `
      + "Each launch, its parts and its timeline stand in the side’s own report.",
  )),
  tables,
];
