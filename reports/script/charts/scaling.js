// Throughput and efficiency against the world size; strong and weak scaling, and each work, have their own panels.
import { hoverOf } from "../core/cases.js";
import { cases, data, distinct, groupBy } from "../core/data.js";
import { cut, known, say } from "../core/format.js";
import { named, state } from "../core/state.js";
import { lazily, onPhone, pointsOf, scaledBy } from "./cases.js";
import { laidOut } from "./layout.js";

const scalingCurves = data.curves?.curves || { n: 0 };
const scalingPoints = data.curves?.points || { n: 0 };
// How far above the highest measured point the ideal line is shown, so that it does not press the curves down.
const ABOVE = 1.5;
const sizeOf = (row) => cases.world_size[row];

// {group, base, points: indices of scalingPoints, row: a case of its own}
const everyCurve = [];
for (let i = 0, at = 0; i < scalingCurves.n; at += scalingCurves.n_points[i], i += 1) {
  const points = Array.from({ length: scalingCurves.n_points[i] }, (_, k) => at + k);
  everyCurve.push({
    group: scalingCurves.group[i], base: scalingCurves.base[i], points, row: scalingPoints.case[points.at(-1)],
  });
}
const sizesOf = (curves) => distinct(
  curves.flatMap(({ points }) => points.map((at) => sizeOf(scalingPoints.case[at]))),
).sort((a, b) => a - b);
const sizesOfGroup = new Map([...groupBy(everyCurve, ({ group }) => group)].map(([group, curves]) => [group, sizesOf(curves)]));

// The curves' points that are selected. What efficiency refers to stays, unless its world size was taken away.
const selectedCurves = (rows) => {
  const chosen = new Set(rows);
  const sizes = state.filters.get("world_size");
  return everyCurve.flatMap((curve) => {
    const { base } = curve;
    const stays = (row) => chosen.has(row) || (row === base && (!sizes || sizes.has(named(sizeOf(row)))));
    const points = curve.points.filter((at) => stays(scalingPoints.case[at]));
    const own = points.some((at) => chosen.has(scalingPoints.case[at]) && scalingPoints.case[at] !== base);
    return points.length > 1 && own ? [{ ...curve, points, baseChosen: chosen.has(base) }] : [];
  });
};

const lastRate = ({ points }) => cases.tokens_per_s[scalingPoints.case[points.at(-1)]];
const bestCurve = (curves) => curves.reduce((best, one) => (
  one.points.length > best.points.length || (one.points.length === best.points.length && lastRate(one) > lastRate(best))
    ? one : best));

// The strategy, with its algorithm where curves differ in it and it has one.
const nameOfCurve = ({ row }, withAlgorithm) => cut([
  cases.strategy[row],
  withAlgorithm && data.styles.strategy[cases.strategy[row]].has_algorithm ? cases.algorithm[row] : "",
  cases.bucket_mib[row] === null ? "" : `${cases.bucket_mib[row]} MiB`,
].filter(Boolean).join(" "), innerWidth < 600 ? 16 : 34);

// Its points, and an empty one at each size that others have and it has not, so that a line crosses no gap.
const withGaps = (points, sizes) => {
  const of = new Map(points.map((at) => [sizeOf(scalingPoints.case[at]), at]));
  const measuredAt = [...of.keys()];
  return sizes.filter((size) => size >= measuredAt[0] && size <= measuredAt.at(-1)).map((size) => [size, of.get(size) ?? null]);
};

// On a phone a legend of many lines has two columns of small names: one column would be as tall as the figure.
const narrowLegend = (traces) => (onPhone() && traces.length > 6
  ? { legend: { entrywidth: 0.48, entrywidthmode: "fraction", font: { size: 10 } } } : {});

const scalingFigure = (curves, sizes, unit) => {
  const several = distinct(curves.map(({ row }) => cases.strategy[row])).length > 1;
  const withAlgorithm = !several || curves.some(({ row }) => cases.algorithm[row] !== "native");
  // Without one device as the common base, the best base is the ideal: no curve is flattered.
  const ranked = curves.filter(({ row }) => cases.ranked[row]);
  const rate = Math.max(...(ranked.length ? ranked : curves).map(({ base }) => cases.tokens_per_s[base] / sizeOf(base)));
  const shown = sizes.filter((size) => size >= sizesOf(curves)[0] && size <= sizesOf(curves).at(-1));
  const highest = Math.max(...curves.flatMap(({ points }) => points.map((at) => cases.tokens_per_s[scalingPoints.case[at]])));
  const wide = shown.at(-1) > 16 * shown[0];  // a straight axis would crowd the small sizes; in log-log "ideal" stays straight
  const [{ base, baseChosen }] = curves;
  const single = baseChosen && cases.strategy[base] === "single" ? base : null;

  const drawn = (value, ideal, y, yaxis) => {
    const also = (at) => `${say.rate(cases.tokens_per_s[scalingPoints.case[at]])} ${unit}/s, `
      + `efficiency ${known(scalingPoints.efficiency[at]) ? say.percent(scalingPoints.efficiency[at]) : "unknown"}`;
    const traces = curves.map((curve) => {
      const points = withGaps(curve.points, sizes);
      const style = several ? data.styles.strategy[cases.strategy[curve.row]] : data.styles.algorithm[cases.algorithm[curve.row]];
      return {
        ...pointsOf(points.map(([, at]) => (at === null ? null : scalingPoints.case[at]))),
        text: points.map(([, at]) => (at === null ? "" : `${hoverOf(scalingPoints.case[at])}<br>${also(at)}`)),
        mode: "lines+markers", name: nameOfCurve(curve, withAlgorithm), x: points.map(([size]) => size),
        y: points.map(([, at]) => (at === null ? null : value(at))), line: { color: style.color, dash: style.dash },
        // Groups of their own take the room of their names; otherwise the longest name sets a column's width.
        marker: { color: style.color, size: 8, symbol: style.symbol }, legendgroup: `${cases.strategy[curve.row]} ${cases.algorithm[curve.row]}`,
      };
    });
    traces.unshift({
      type: "scatter", mode: "lines", name: "ideal", legendgroup: "ideal", hoverinfo: "skip", x: shown, y: shown.map(ideal),
      line: { color: "#999999", dash: "dot", width: 1.5 },
    });
    if (single !== null) {  // where all curves begin; once, over their own marks
      traces.push({
        ...pointsOf([single]), mode: "markers", name: "single", legendgroup: "single", x: [sizeOf(single)],
        y: [ideal(sizeOf(single))], marker: { size: 12, color: data.styles.strategy.single.color },
      });
    }
    const xaxis = { type: wide ? "log" : "linear", tickvals: shown, ticktext: shown.map(String) };
    return { traces, layout: laidOut("world size (ranks)", y, { xaxis, yaxis, ...narrowLegend(traces) }) };
  };
  const top = 1.05 * Math.max(highest, Math.min(rate * shown.at(-1), ABOVE * highest));
  return {
    throughput: () => drawn(
      (at) => cases.tokens_per_s[scalingPoints.case[at]], (size) => rate * size, `throughput (${unit}/s)`,
      wide ? { type: "log" } : { range: [0, top] },
    ),
    efficiency: () => drawn((at) => scaledBy(scalingPoints.efficiency[at], 100), () => 100, "efficiency (%)", { rangemode: "tozero" }),
  };
};

export const scalingPanels = (rows) => [...groupBy(selectedCurves(rows), ({ group }) => group)].flatMap(([group, all]) => {
  const { title, unit } = data.curves.groups[group];
  const column = distinct(all.map(({ row }) => cases.strategy[row])).length > 1 ? "strategy" : "algorithm";
  const curves = [...groupBy(all, ({ row }) => cases[column][row]).values()].map(bestCurve);
  let figure = null;
  return ["throughput", "efficiency"].map((what) => lazily(
    // So that a legend of a line for two leaves room for the curves.
    { key: `scaling-${group}-${what}`, title: `${title}: ${what}`, height: 340 + 16 * curves.length },
    () => (figure ??= scalingFigure(curves, sizesOfGroup.get(group), unit))[what](),
  ));
});
