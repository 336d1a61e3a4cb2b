// The fastest of the selected cases, a dot each: how far behind the best of its work, with an interval; or its step time,
// with its fastest and slowest launch, where no interval is known.
import { cases, data, distinct, groupBy } from "../core/data.js";
import { count, cut, fixed, known, say } from "../core/format.js";
import { barHeight, ERROR_BARS, inMs, launchBars, lazily, markOf, measured, pointsOf, someOf, titled } from "./cases.js";
import { axisOf, laidOut, rankedName } from "./layout.js";

const MOST_RANKED = 16;
const atLeast = (row) => `≥ ${say.percent(cases.left_at_least[row])}`;
const rankingName = (row) => rankedName(row)
  + (known(cases.left_after_block[row]) ? ` (left after block ${cases.left_after_block[row]}: ${atLeast(row)})` : "");
const behindSaid = (row) => (cases.slower[row] ? `${say.percent(Math.abs(cases.slower[row]))} ${cases.slower[row] > 0 ? "slower" : "faster"} than the best` : "")
  + (known(cases.slower_low[row]) ? ` (95 %: ${say.percent(cases.slower_low[row])} to ${say.percent(cases.slower_high[row])})` : "");
const inPercent = (column, row) => 100 * (cases[column][row] ?? cases.slower[row]);
const behindBars = (rows) => ({
  ...ERROR_BARS, array: rows.map((row) => inPercent("slower_high", row) - inPercent("slower", row)),
  arrayminus: rows.map((row) => inPercent("slower", row) - inPercent("slower_low", row)),
});
const LEVEL = { type: "line", layer: "below", x0: 0, x1: 0, yref: "paper", y0: 0, y1: 1, line: { color: "#888888", width: 1 } };

const rankingPanel = (group, compared) => ({
  traces: [...groupBy(group, (row) => cases.strategy[row])].map(([name, own]) => {
    const style = data.styles.strategy[name];
    return {
      ...pointsOf(own, compared ? behindSaid : undefined), mode: "markers", name: cut(name), showlegend: false,
      y: own.map((row) => group.indexOf(row)),
      x: own.map((row) => (compared ? inPercent("slower", row) : cases.step_time_s[row] * 1e3)),
      error_x: { ...(compared ? behindBars(own) : launchBars(own, inMs)), color: style.color },
      marker: { color: style.color, size: 9, symbol: own.map((row) => markOf(style, row)) },
    };
  }),
  layout: laidOut(compared ? "slower than the best (%)" : "step time (ms)", "", {
    yaxis: axisOf(group.map(rankingName)), shapes: compared ? [LEVEL] : [],
  }),
});

export const rankingPanels = (rows) => [...groupBy(measured(rows), (row) => cases.work[row])].map(([work, all]) => {
  const { compared } = data.works[work];
  const own = compared ? all.filter((row) => known(cases.slower[row])).sort((a, b) => cases.slower[a] - cases.slower[b]) : all;
  const group = own.slice(0, MOST_RANKED);
  return lazily(
    { key: `ranking-${work}`, title: titled(all[0], someOf(group, own, "fastest")), wide: true, height: barHeight(group, 60, 1, rankingName) },
    () => rankingPanel(group, compared),
  );
});

// Step time against peak memory. Which configurations no other beats in both is decided in Python, among all cases.
const MOST_POINTS = 2000;

const frontPanel = (group, front) => {
  const place = (of) => ({ x: of.map((row) => cases.step_time_s[row] * 1e3), y: of.map((row) => cases.mean_peak_bytes[row] / 2 ** 20) });
  const line = {
    type: "scatter", mode: "lines", name: "beaten by none", ...place(front), hoverinfo: "skip",
    line: { color: "#888888", width: 1.5, shape: "hv" },
  };
  const best = new Set(front);
  const points = [...groupBy(group, (row) => cases.strategy[row])].map(([name, own]) => {
    const style = data.styles.strategy[name];
    return {
      ...pointsOf(own, (row) => `${say.mib(cases.mean_peak_bytes[row])} MiB on the fullest rank`),
      mode: "markers", name: cut(name), legendgroup: name, ...place(own),
      marker: { color: style.color, size: 9, symbol: own.map((row) => style.symbol + (best.has(row) ? "" : "-open")) },
    };
  });
  return { traces: [line, ...points], layout: laidOut("step time (ms)", "peak memory of a rank (MiB)") };
};

export const frontPanels = (rows) => {
  const comparable = measured(rows).filter((row) => cases.ranked[row] && known(cases.mean_peak_bytes[row]));
  return [...groupBy(comparable, (row) => cases.work[row])].flatMap(([work, all]) => {
    const { front } = data.works[work];
    if (!front.length) return [];
    const group = all.filter((row, i) => i < MOST_POINTS || front.includes(row));
    const more = group.length < all.length ? `the ${fixed(MOST_POINTS, 0)} fastest of ${count(all.length, "case")}` : "";
    const strategies = distinct(group.map((row) => cases.strategy[row])).length;
    return lazily({ key: `front-${work}`, title: titled(all[0], more), height: 360 + 16 * strategies }, () => frontPanel(group, front));
  });
};
