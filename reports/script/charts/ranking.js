// The fastest of the selected cases: a dot each, with its fastest and slowest launch.
import { cases, data, distinct, groupBy } from "../core/data.js";
import { count, cut, fixed, known, say } from "../core/format.js";
import { barHeight, inMs, launchBars, lazily, markOf, measured, pointsOf, someOf, titled } from "./cases.js";
import { laidOut, nameAxis } from "./layout.js";

const MOST_RANKED = 16;
const rankingPanel = (group) => ({
  traces: [...groupBy(group, (row) => cases.strategy[row])].map(([name, own]) => {
    const style = data.styles.strategy[name];
    return {
      ...pointsOf(own), mode: "markers", name: cut(name), showlegend: false, y: own.map((row) => group.indexOf(row)),
      x: own.map((row) => cases.step_time_s[row] * 1e3), error_x: { ...launchBars(own, inMs), color: style.color },
      marker: { color: style.color, size: 9, symbol: own.map((row) => markOf(style, row)) },
    };
  }),
  layout: laidOut("step time (ms)", "", { yaxis: nameAxis(group) }),
});

export const rankingPanels = (rows) => [...groupBy(measured(rows), (row) => cases.work[row])].map(([work, all]) => {
  const group = all.slice(0, MOST_RANKED);
  return lazily(
    { key: `ranking-${work}`, title: titled(all[0], someOf(group, all, "fastest")), wide: true, height: barHeight(group, 60, 1) },
    () => rankingPanel(group),
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
