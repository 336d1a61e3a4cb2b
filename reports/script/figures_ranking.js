// The fastest of the selected cases: a dot each, with its fastest and slowest launch.
const MOST_RANKED = 16;
// Characters in a line of a name beside a figure: on a phone the figure needs the room.
const lineLength = () => (innerWidth >= 1000 || document.documentElement.dataset.print ? 44 : 24);

// Words in lines of at most so many characters. Of too many lines those before the last go: names differ at their ends.
const wrapped = (text, length, most) => {
  const lines = [""];
  for (const word of text.split(" ").map((each) => shortened(each, length))) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= length) lines.push("");
    lines[lines.length - 1] += (lines.at(-1) ? " " : "") + word;
  }
  return lines.length > most ? [...lines.slice(0, most - 2), `${lines[most - 2]} …`, lines.at(-1)] : lines;
};
// A case's name in short lines: on one, or else strategy and options, then ranks and what else there is to say.
const nameLines = (label) => {
  const length = lineLength();
  const at = label.indexOf(", ");
  if (label.length <= length || at < 0) return wrapped(label, length, 3).map(plain);
  return [...wrapped(label.slice(0, at + 1), length, 3), ...wrapped(label.slice(at + 2), length, 2)].map(plain);
};
// What is no answer says so beside its name.
const answerName = (row) => (cases.ranked[row] ? cases.label[row] : `${cases.label[row]} (${cases.mark[row]})`);
// The axis of names: the first on top.
const nameAxis = (rows) => ({
  tickvals: rows.map((_, i) => i), ticktext: rows.map((row) => nameLines(answerName(row)).join("<br>")), range: [rows.length - 0.5, -0.5],
  showgrid: false,
});

const rankingPanel = (group) => ({
  traces: [...groupBy(group, (row) => cases.strategy[row])].map(([name, own]) => {
    const style = data.styles.strategy[name];
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
  const more = all.length > group.length ? `the ${MOST_RANKED} fastest of ${count(all.length, "case")}` : "";
  return lazily(
    { key: `ranking-${work}`, title: titled(all[0], more), wide: true, height: barHeight(group, 60, 1) },
    () => rankingPanel(group),
  );
});
