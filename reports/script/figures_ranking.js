// The fastest of the selected cases: a dot each, with its fastest and slowest launch.
const MOST_RANKED = 16;
const LINE = 24;  // characters in a line of a name beside a figure

// A name in short lines, so that a phone keeps room for the figure; hovering has the whole.
const inLines = (label, most = 3) => {
  const lines = [""];
  for (const word of label.split(" ")) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= LINE) lines.push("");
    lines[lines.length - 1] += (lines.at(-1) ? " " : "") + word;
  }
  const cut = lines.length > most ? [...lines.slice(0, most - 1), `${lines[most - 1]} …`] : lines;
  return cut.map((line) => plain(line.length > LINE + 6 ? `${line.slice(0, LINE + 5)}…` : line)).join("<br>");
};
// The axis of names: the first on top.
const nameAxis = (rows) => ({
  tickvals: rows.map((_, i) => i), ticktext: rows.map((row) => inLines(cases.label[row])), range: [rows.length - 0.5, -0.5],
  showgrid: false,
});
const heightOf = (rows) => {
  const lines = Math.max(...rows.map((row) => inLines(cases.label[row]).split("<br>").length));
  return 90 + (12 + 16 * Math.max(lines, 1)) * rows.length;
};

drawers.ranking = (rows) => [...groupBy(measured(rows), (row) => cases.work[row])].map(([work, all]) => {
  const group = all.slice(0, MOST_RANKED);
  const coloured = distinct(group.map((row) => cases.strategy[row])).length > 1 ? "strategy" : "algorithm";
  const traces = [...groupBy(group, (row) => cases[coloured][row])].map(([name, own]) => {
    const style = data.styles[coloured][name];
    return {
      type: "scatter", mode: "markers", name: plain(name), y: own.map((row) => group.indexOf(row)),
      x: own.map((row) => cases.latency_s[row] * 1e3),
      error_x: {
        type: "data", symmetric: false, thickness: 1.5, width: 4, color: style.color,
        array: own.map((row) => (cases.high_s[row] - cases.latency_s[row]) * 1e3),
        arrayminus: own.map((row) => (cases.latency_s[row] - cases.low_s[row]) * 1e3),
      },
      ids: own.map((row) => cases.case_id[row]), text: own.map(hoverOf), hovertemplate: "%{text}<extra></extra>",
      marker: { color: style.color, size: 9, symbol: own.map((row) => style.symbol + (cases.place[row] ? "" : "-open")) },
    };
  });
  const more = all.length > group.length ? `the ${MOST_RANKED} fastest of ${count(all.length, "case")}` : "";
  return {
    key: `ranking-${work}`, title: [data.works[work].name, more].filter(Boolean).join(" · "), traces, wide: true,
    height: heightOf(group), layout: laidOut("step latency (ms)", "", { yaxis: nameAxis(group) }),
  };
});
