// What figures of cases have in common. `cases` come fastest first, and so do all rows here.
import { hoverOf } from "../core/cases.js";
import { cases, data, distinct, groupBy } from "../core/data.js";
import { count, fixed, known } from "../core/format.js";
import { nameLines, rankedName } from "./layout.js";

const nativeFirst = Object.keys(data.styles?.algorithm || {});  // the order in which Python lists them
export const measured = (rows) => rows.filter((row) => known(cases.step_time_s[row]));
export const titled = (row, ...parts) => [data.works[cases.work[row]].name, ...parts].filter(Boolean).join(" · ");
// Of what is cut to `shown`, which they are of how many.
export const someOf = (shown, all, which) => (
  all.length > shown.length ? `the ${fixed(shown.length, 0)} ${which} of ${count(all.length, "case")}` : ""
);
export const worldKey = (row) => `${cases.work[row]} ${cases.world_size[row]} ${cases.strategy[row]}`;
export const byWorld = (rows) => groupBy(measured(rows), worldKey);
export const worldTitle = (row) => titled(row, `${cases.strategy[row]}, ${count(cases.world_size[row], "rank")}`);

// By algorithm, native first: [name, rows, how it is drawn].
export const byAlgorithm = (rows) => {
  const groups = groupBy(rows, (row) => cases.algorithm[row]);
  return nativeFirst.filter((name) => groups.has(name)).map((name) => [name, groups.get(name), data.styles.algorithm[name]]);
};
// The first row of each value of a column: where cases differ in more, the fastest stands for them.
export const firstOfEach = (rows, column) => [...groupBy(rows, (row) => cases[column][row]).values()].map(([first]) => first);
// By rising size; then lists of caps, which are texts ("1+4", of one "4+"), cap by cap; PyTorch's default last. A plus
// behind an e is an exponent's.
const capsOf = (text) => text.split(/(?<!e)\+/u).filter(Boolean).map(Number);
const byCaps = (a, b) => {
  const at = a.findIndex((cap, place) => cap !== b[place]);
  return at < 0 ? a.length - b.length : a[at] - (b[at] ?? 0);
};
const kindOf = (mib) => (mib === null ? 2 : typeof mib === "string" ? 1 : 0);
export const byBucket = (a, b) => kindOf(a) - kindOf(b)
  || (typeof a === "string" ? byCaps(capsOf(a), capsOf(b)) : (a ?? 0) - (b ?? 0));
export const bucketSizes = (rows) => distinct(rows.map((row) => cases.bucket_mib[row])).sort(byBucket);

// What is of no strategy nor algorithm has the colour of none.
export const NEUTRAL = "#6B7F93";
// Filled where it is the fastest, or tied with it.
export const markOf = (style, row) => style.symbol + (cases.ranking[row] ? "" : "-open");
export const ERROR_BARS = { type: "data", symmetric: false, thickness: 1.2, width: 4 };
// What lies within is alike.
export const BAND = { type: "rect", layer: "below", line: { width: 0 }, fillcolor: "rgba(107, 127, 147, 0.18)" };
// Bars from the fastest to the slowest launch; `scale` makes of a row's seconds what the axis shows.
// Of a page of several sides `column` gives a side's.
export const launchBars = (rows, scale, column = (name) => cases[name]) => {
  const [low, step, high] = ["low_s", "step_time_s", "high_s"].map(column);
  return {
    ...ERROR_BARS, array: rows.map((row) => Math.max(0, high[row] - step[row]) * scale(row)),
    arrayminus: rows.map((row) => Math.max(0, step[row] - low[row]) * scale(row)),
  };
};
export const inMs = () => 1e3;
// Points of cases: what hovering says and which case a click opens. A row of null is a gap.
export const pointsOf = (rows, also = () => "") => ({
  type: "scatter", ids: rows.map((row) => (row === null ? "" : cases.case_id[row])),
  text: rows.map((row) => (row === null ? "" : [hoverOf(row), also(row)].filter(Boolean).join("<br>"))),
  hovertemplate: "%{text}<extra></extra>",
});

// A panel whose traces and layout are made when it is drawn: of many panels few are.
export const lazily = (panel, make) => {
  let made = null;
  const once = () => (made ??= make());
  return { ...panel, get traces() { return once().traces; }, get layout() { return once().layout; } };
};
// Groups with the most of something first; among equals the one with the fastest case.
export const mostFirst = (groups, size) => groups.map((group) => [size(group), group]).sort(([a], [b]) => b - a).map(([, group]) => group);

// Bars of cases: a panel for each work, the fastest of the selected cases on top.
export const MOST_BARS = 16;

// How high the figure is with `head` pixels for axis and legend. Of one bar plotly would not make room for its axis.
const LEAST_BARS = 60;
export const barHeight = (rows, head, least = document.documentElement.dataset.print ? 1 : 2, name = rankedName) => {
  const lines = Math.max(least, ...rows.map((row) => nameLines(name(row)).length));
  return head + Math.max(LEAST_BARS, (12 + 16 * lines) * rows.length);
};

export const onPhone = () => innerWidth < 600 && !document.documentElement.dataset.print;
// How much higher a figure is for a legend of so many names: on a phone each has a line of its own.
export const legendHeight = (names) => (onPhone() ? 19 * (names - 1) : 0);

// A panel for each work of what `draw` makes of its fastest cases that `has` something to show.
export const barPanels = (key, rows, has, draw) => (
  [...groupBy(measured(rows).filter(has), (row) => cases.work[row])].map(([work, all]) => {
    const group = all.slice(0, MOST_BARS);
    return { key: `${key}-${work}`, title: titled(all[0], someOf(group, all, "fastest")), wide: true, ...draw(group) };
  })
);

// One bar of every row: `x` and what hovering says of it before it says what it says everywhere.
export const barOf = (rows, { color, name }, x, said, more = {}) => ({
  type: "bar", orientation: "h", name, marker: { color, line: { width: 0 } }, y: rows.map((_, i) => i), x: rows.map(x),
  ...hoveredBars(rows, said), ...more,
});
const hoveredBars = (rows, said) => ({
  ids: rows.map((row) => cases.case_id[row]), hovertext: rows.map((row) => [said(row), hoverOf(row)].filter(Boolean).join("<br>")),
  hovertemplate: "%{hovertext}<extra></extra>",
});
// A legend that names parts in the order in which they lie.
export const partsLegend = { traceorder: "normal" };
export const scaledBy = (value, factor) => (known(value) ? value * factor : null);
// What theory says; dark with a light edge, so that it is seen on bars and pages of any colour.
export const theoryMarks = (rows, x, said) => ({
  type: "scatter", mode: "markers", name: "theory", y: rows.map((_, i) => i), x: rows.map(x), ...hoveredBars(rows, said),
  marker: { symbol: "diamond-tall", size: 15, color: "#111111", line: { width: 1.5, color: "#ffffff" } },
});
export const anyKnown = (rows, column) => rows.some((row) => known(cases[column][row]));
