// What figures of cases have in common. `cases` come fastest first, and so do all rows here.
const nativeFirst = Object.keys(data.styles?.algorithm || {});  // the order in which Python lists them
const measured = (rows) => rows.filter((row) => known(cases.latency_s[row]));
const titled = (row, ...parts) => [data.works[cases.work[row]].name, ...parts].filter(Boolean).join(" · ");
const worldKey = (row) => `${cases.work[row]} ${cases.world_size[row]} ${cases.strategy[row]}`;
const byWorld = (rows) => groupBy(measured(rows), worldKey);
const worldTitle = (row) => titled(row, `${cases.strategy[row]}, ${count(cases.world_size[row], "rank")}`);

// By algorithm, native first: [name, rows, how it is drawn].
const byAlgorithm = (rows) => {
  const groups = groupBy(rows, (row) => cases.algorithm[row]);
  return nativeFirst.filter((name) => groups.has(name)).map((name) => [name, groups.get(name), data.styles.algorithm[name]]);
};
// The first row of each value of a column: where cases differ in more, the fastest stands for them.
const firstOfEach = (rows, column) => [...groupBy(rows, (row) => cases[column][row]).values()].map(([first]) => first);
const byBucket = (a, b) => (a ?? Infinity) - (b ?? Infinity) || 0;  // PyTorch's default last
const bucketSizes = (rows) => distinct(rows.map((row) => cases.bucket_mib[row])).sort(byBucket);

// Without its middle: the names of a user's own are often of one module, and differ at their ends.
const shortened = (text, most) => (text.length > most
  ? `${text.slice(0, Math.ceil((most - 1) / 2))}…${text.slice(-Math.floor((most - 1) / 2))}` : text);
// A name as a legend or an axis has room for; hovering says the whole.
const cut = (name, most = 24) => plain(shortened(name, most));
// What is of no strategy nor algorithm has the colour of none.
const NEUTRAL = "#6B7F93";
// Filled where it cannot be told apart from the fastest.
const markOf = (style, row) => style.symbol + (cases.place[row] ? "" : "-open");
// Bars from the fastest to the slowest launch; `scale` makes of a row's seconds what the axis shows.
const launchBars = (rows, scale) => ({
  type: "data", symmetric: false, thickness: 1.2, width: 4,
  array: rows.map((row) => Math.max(0, cases.high_s[row] - cases.latency_s[row]) * scale(row)),
  arrayminus: rows.map((row) => Math.max(0, cases.latency_s[row] - cases.low_s[row]) * scale(row)),
});
const inMs = () => 1e3;
// Points of cases: what hovering says and which case a click opens. A row of null is a gap.
const pointsOf = (rows, also = () => "") => ({
  type: "scatter", ids: rows.map((row) => (row === null ? "" : cases.case_id[row])),
  text: rows.map((row) => (row === null ? "" : [hoverOf(row), also(row)].filter(Boolean).join("<br>"))),
  hovertemplate: "%{text}<extra></extra>",
});

// A panel whose traces and layout are made when it is drawn: of many panels few are.
const lazily = (panel, make) => {
  let made = null;
  const once = () => (made ??= make());
  return { ...panel, get traces() { return once().traces; }, get layout() { return once().layout; } };
};
// Groups with the most of something first; among equals the one with the fastest case.
const mostFirst = (groups, size) => groups.map((group) => [size(group), group]).sort(([a], [b]) => b - a).map(([, group]) => group);
