// Bars of cases: a panel for each work, the fastest of the selected cases on top.
const MOST_BARS = 16;

// How high the figure is with `head` pixels for axis and legend.
const barHeight = (rows, head, least = document.documentElement.dataset.print ? 1 : 2) => {
  const lines = Math.max(least, ...rows.map((row) => nameLines(answerName(row)).length));
  return head + (12 + 16 * lines) * rows.length;
};

// A panel for each work of what `draw` makes of its fastest cases that `has` something to show.
const barPanels = (key, rows, has, draw) => (
  [...groupBy(measured(rows).filter(has), (row) => cases.work[row])].map(([work, all]) => {
    const group = all.slice(0, MOST_BARS);
    const more = all.length > group.length ? `the ${MOST_BARS} fastest of ${count(all.length, "case")}` : "";
    return { key: `${key}-${work}`, title: [data.works[work].name, more].filter(Boolean).join(" · "), wide: true, ...draw(group) };
  })
);

// One bar of every row: `x` and what hovering says of it before it says what it says everywhere.
const barOf = (rows, { color, name }, x, said, more = {}) => ({
  type: "bar", orientation: "h", name, marker: { color, line: { width: 0 } }, y: rows.map((_, i) => i), x: rows.map(x),
  ...hoveredBars(rows, said), ...more,
});
const hoveredBars = (rows, said) => ({
  ids: rows.map((row) => cases.case_id[row]), hovertext: rows.map((row) => [said(row), hoverOf(row)].filter(Boolean).join("<br>")),
  hovertemplate: "%{hovertext}<extra></extra>",
});
// A legend that names parts in the order in which they lie.
const partsLegend = { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", traceorder: "normal" };
const scaledBy = (value, factor) => (known(value) ? value * factor : null);
// What theory says; dark with a light edge, so that it is seen on bars and pages of any colour.
const theoryMarks = (rows, x, said) => ({
  type: "scatter", mode: "markers", name: "theory", y: rows.map((_, i) => i), x: rows.map(x), ...hoveredBars(rows, said),
  marker: { symbol: "diamond-tall", size: 15, color: "#111111", line: { width: 1.5, color: "#ffffff" } },
});
const anyKnown = (rows, column) => rows.some((row) => known(cases[column][row]));
