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
  const some = lines.length > most ? [...lines.slice(0, most - 1), `${lines[most - 1]} …`] : lines;
  return some.map((line) => plain(line.length > LINE + 6 ? `${line.slice(0, LINE + 5)}…` : line)).join("<br>");
};
// What is no answer says so beside its name.
const answerName = (row) => (cases.ranked[row] ? cases.label[row] : `${cases.label[row]} (${cases.mark[row]})`);
// The axis of names: the first on top.
const nameAxis = (rows) => ({
  tickvals: rows.map((_, i) => i), ticktext: rows.map((row) => inLines(answerName(row))), range: [rows.length - 0.5, -0.5],
  showgrid: false,
});
const heightOf = (rows) => {
  const lines = Math.max(...rows.map((row) => inLines(answerName(row)).split("<br>").length));
  return 60 + (12 + 16 * Math.max(lines, 1)) * rows.length;
};

const rankingPanel = (group, coloured) => ({
  traces: [...groupBy(group, (row) => cases[coloured][row])].map(([name, own]) => {
    const style = data.styles[coloured][name];
    return {
      ...pointsOf(own), mode: "markers", name: cut(name), showlegend: false, y: own.map((row) => group.indexOf(row)),
      x: own.map((row) => cases.latency_s[row] * 1e3), error_x: { ...launchBars(own, inMs), color: style.color },
      marker: { color: style.color, size: 9, symbol: own.map((row) => markOf(style, row)) },
    };
  }),
  layout: laidOut("step latency (ms)", "", { yaxis: nameAxis(group) }),
});

drawers.ranking = (rows) => [...groupBy(measured(rows), (row) => cases.work[row])].map(([work, all]) => {
  const group = all.slice(0, MOST_RANKED);
  const coloured = distinct(group.map((row) => cases.strategy[row])).length > 1 ? "strategy" : "algorithm";
  const more = all.length > group.length ? `the ${MOST_RANKED} fastest of ${count(all.length, "case")}` : "";
  return lazily(
    { key: `ranking-${work}`, title: titled(all[0], more), wide: true, height: heightOf(group) },
    () => rankingPanel(group, coloured),
  );
});
