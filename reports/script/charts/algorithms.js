// What an algorithm costs in a step: its fastest case over native's, at the same strategy, ranks and bucket size.
import { cases, data, distinct, groupBy } from "../core/data.js";
import { count, cut, known, say } from "../core/format.js";
import {
  byAlgorithm, byBucket, firstOfEach, launchBars, lazily, measured, mostFirst, pointsOf, titled, worldKey,
  worldTitle,
} from "./cases.js";
import { laidOut } from "./layout.js";

const MOST_LINES = 24;  // in a panel; with more, each world size has its own
const lineKey = (row) => `${worldKey(row)} ${cases.bucket_mib[row]}`;
// Native's fastest case by `lineKey`, whatever is selected: it is what others are compared with.
let natives = null;
const nativeOf = (row) => {
  if (natives === null) {
    natives = new Map();
    for (let each = cases.n - 1; each >= 0; each -= 1) {  // the fastest last, so that it stays
      if (cases.algorithm[each] === "native" && known(cases.step_time_s[each])) natives.set(lineKey(each), each);
    }
  }
  return natives.get(lineKey(row));
};
// The ratio in common launches and repetitions. `slower` is unknown for a case that is not compared with the best.
const isComparable = (row) => known(cases.slower[row]) && known(cases.slower[nativeOf(row)]);
const overNative = (row) => (1 + cases.slower[row]) / (1 + cases.slower[nativeOf(row)]);

const algorithmsPanel = (lines) => {
  const buckets = distinct(lines.map(([row]) => cases.bucket_mib[row])).length > 1;
  const at = new Map(lines.flatMap((line, i) => line.map((row) => [row, i])));
  const groups = byAlgorithm(lines.flat());
  const traces = groups.map(([name, own, style], i) => ({
    ...pointsOf(own, (row) => (name === "native" ? "" : `${say.digits(overNative(row))} times native's step`)),
    name: cut(name), legendgroup: name, mode: "markers", x: own.map(overNative),
    y: own.map((row) => at.get(row) + (i - (groups.length - 1) / 2) * Math.min(0.14, 0.7 / groups.length)),
    error_x: { ...launchBars(own, (row) => overNative(row) / cases.step_time_s[row]), color: style.color },
    marker: { color: style.color, size: 9, symbol: style.symbol },
  }));
  const said = ([row]) => count(cases.world_size[row], "rank") + (buckets
    ? `, ${say.bucket(cases.bucket_mib[row])}${cases.bucket_mib[row] === null ? "" : " MiB"}` : "");
  return {
    traces,
    layout: laidOut("over native (ratio)", "", {
      yaxis: {
        tickvals: lines.map((_, i) => i), ticktext: lines.map(said), range: [lines.length - 0.5, -0.5], showgrid: false,
      },
      shapes: [{
        type: "line", layer: "below", x0: 1, x1: 1, yref: "paper", y0: 0, y1: 1,
        line: { color: data.styles.algorithm.native.color, width: 1.5, dash: "dot" },
      }],
    }),
  };
};

export const algorithmsPanels = (rows) => {
  const comparable = measured(rows).filter((row) => nativeOf(row) !== undefined && isComparable(row));
  // Where algorithms can be compared, with the fastest case of each.
  const lines = [...groupBy(comparable, lineKey).values()].map((line) => firstOfEach(line, "algorithm"))
    .filter((line) => line.some((row) => cases.algorithm[row] !== "native"));
  const byStrategy = groupBy(lines, ([row]) => `${cases.work[row]} ${cases.strategy[row]}`);
  const panels = [...byStrategy].flatMap(([key, own]) => {
    if (own.length <= MOST_LINES) return [{ key, own, title: titled(own[0][0], cases.strategy[own[0][0]]) }];
    return [...groupBy(own, ([row]) => worldKey(row))].map(([world, some]) => ({
      key: world, own: some, title: worldTitle(some[0][0]),
    }));
  });
  return mostFirst(panels, ({ own }) => own.length).map(({ key, own, title }) => {
    own.sort(([a], [b]) => cases.world_size[a] - cases.world_size[b] || byBucket(cases.bucket_mib[a], cases.bucket_mib[b]));
    const names = distinct(own.flat().map((row) => cases.algorithm[row])).length;
    return lazily({ key, title, height: 120 + Math.max(30, 9 * names) * own.length }, () => algorithmsPanel(own));
  });
};
