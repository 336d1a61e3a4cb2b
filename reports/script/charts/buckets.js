// Step time against bucket size: a curve per algorithm, a panel for each work, strategy and world size.
import { hoverOf } from "../core/cases.js";
import { cases } from "../core/data.js";
import { cut, say } from "../core/format.js";
import {
  BAND, bucketSizes, byAlgorithm, byWorld, firstOfEach, inMs, launchBars, lazily, markOf, mostFirst, pointsOf,
  worldTitle,
} from "./cases.js";
import { laidOut } from "./layout.js";

const isSize = (mib) => typeof mib === "number";

// Where each bucket size stands on a log axis; lists of caps and PyTorch's default, which are no size, apart on the right.
export const bucketPlaces = (sizes) => {
  const numbers = sizes.filter(isSize);
  const places = new Map(numbers.map((mib) => [mib, Math.log2(mib)]));
  const [low, high] = numbers.length ? [Math.log2(numbers[0]), Math.log2(numbers.at(-1))] : [0, 0];
  const step = Math.max(1, (high - low) / 5);
  sizes.filter((mib) => !isSize(mib)).forEach((mib, i) => places.set(mib, high + (i + 1) * step));
  return places;
};

// The rows of one curve, and one by one those that no line joins; each with whether the legend names it.
export const curvesOf = (rows) => {
  const numbered = rows.filter((row) => isSize(cases.bucket_mib[row])).sort((a, b) => cases.bucket_mib[a] - cases.bucket_mib[b]);
  const apart = rows.filter((row) => !isSize(cases.bucket_mib[row]));
  return [...(numbered.length ? [numbered] : []), ...apart.map((row) => [row])].map((own, i) => [own, !i]);
};

// Shaded: each run of neighbouring bucket sizes at which one of the rows that are drawn is in the sweet-spot set.
const inTheSet = (sizes, places, drawn) => {
  const inside = new Set(drawn.filter((row) => cases.ranking[row]).map((row) => cases.bucket_mib[row]));
  const bands = [];
  sizes.forEach((mib, i) => {
    if (!inside.has(mib)) return;
    if (i && inside.has(sizes[i - 1])) bands.at(-1).to = mib;
    else bands.push({ from: mib, to: mib });
  });
  return bands.map(({ from, to }) => ({
    ...BAND, yref: "paper", y0: 0, y1: 1, x0: places.get(from) - 0.3, x1: places.get(to) + 0.3,
  }));
};

const bucketPanel = (group, sizes) => {
  const places = bucketPlaces(sizes);
  const algorithms = byAlgorithm(group).map(([name, all, style]) => [name, firstOfEach(all, "bucket_mib"), style]);
  const traces = algorithms.flatMap(([name, fastest, style], i) => {
    const aside = (i - (algorithms.length - 1) / 2) * 0.06;  // so that bars do not hide each other
    const draw = (own, showlegend) => ({
      ...pointsOf(own), name: cut(name), legendgroup: name, showlegend, mode: own.length > 1 ? "lines+markers" : "markers",
      x: own.map((row) => places.get(cases.bucket_mib[row]) + aside), y: own.map((row) => cases.step_time_s[row] * 1e3),
      error_y: launchBars(own, inMs), line: { color: style.color, dash: style.dash },
      marker: { color: style.color, size: 9, symbol: own.map((row) => markOf(style, row)) },
    });
    return curvesOf(fastest).map(([own, shown]) => draw(own, shown));
  });
  const drawn = algorithms.flatMap(([, fastest]) => fastest);
  return {
    traces,
    layout: laidOut("bucket size (MiB)", "step time (ms)", {
      xaxis: { tickvals: sizes.map((mib) => places.get(mib)), ticktext: sizes.map(say.bucket) },
      shapes: inTheSet(sizes, places, drawn),
    }),
  };
};

export const bucketsPanels = (rows) => {
  const groups = [...byWorld(rows)].map(([key, group]) => ({ key, group, sizes: bucketSizes(group) }));
  return mostFirst(groups.filter(({ sizes }) => sizes.length > 1), ({ sizes }) => sizes.length).map(
    ({ key, group, sizes }) => lazily({ key, title: worldTitle(group[0]), height: 380 }, () => bucketPanel(group, sizes)),
  );
};

// Algorithm against bucket size: the step time in each cell, the sweet-spot set outlined.
const cellsOf = (group) => {
  const sizes = bucketSizes(group);
  const algorithms = byAlgorithm(group).map(([name, all]) => [name, new Map(
    firstOfEach(all, "bucket_mib").map((row) => [cases.bucket_mib[row], row]),
  )]);
  return { sizes, names: algorithms.map(([name]) => name), cells: algorithms.map(([, of]) => sizes.map((mib) => of.get(mib) ?? null)) };
};

// Light enough throughout for black text, on light and dark pages alike.
const [FAST, SLOW] = [[0x4f, 0xa8, 0xdd], [0xf4, 0xf8, 0xfb]];
const shade = (share) => `rgb(${FAST.map((from, i) => Math.round(from + share * (SLOW[i] - from))).join(",")})`;
const LIGHTEST = 1.25;  // times the fastest cell: one slow algorithm must not make all others look alike
// Cells are bars: plotly's basic bundle, a quarter of the whole, has no heat maps.
const heatPanel = ({ sizes, names, cells }) => {
  const filled = cells.flatMap((line, y) => line.map((row, x) => ({ row, x, y }))).filter(({ row }) => row !== null);
  const rows = filled.map(({ row }) => row);
  const times = rows.map((row) => cases.step_time_s[row] * 1e3);
  const fastest = Math.min(...times);
  const slowest = Math.min(Math.max(...times), LIGHTEST * fastest);
  const outlined = filled.filter(({ row }) => cases.ranking[row]);
  return {
    traces: [{
      type: "bar", x: filled.map(({ x }) => x), base: filled.map(({ y }) => y - 0.47), y: filled.map(() => 0.94), width: 0.97,
      ids: rows.map((row) => cases.case_id[row]), text: rows.map((row) => say.ms(cases.step_time_s[row])),
      textposition: "inside", insidetextanchor: "middle", textangle: 0, constraintext: "none",
      insidetextfont: { color: "#111111", size: 12 }, hovertext: rows.map(hoverOf), hovertemplate: "%{hovertext}<extra></extra>",
      marker: {
        color: times.map((ms) => shade(Math.min(1, (ms - fastest) / (slowest - fastest || 1)))), line: { width: 0 },
      },
    }],
    layout: laidOut("bucket size (MiB)", "", {
      barmode: "overlay",
      xaxis: { tickvals: sizes.map((_, i) => i), ticktext: sizes.map(say.bucket), showgrid: false },
      yaxis: {
        tickvals: names.map((_, i) => i), ticktext: names.map((name) => cut(name, 20)), range: [names.length - 0.5, -0.5],
        showgrid: false,
      },
      shapes: outlined.map(({ x, y }) => ({
        type: "rect", x0: x - 0.44, x1: x + 0.44, y0: y - 0.42, y1: y + 0.42, line: { color: "#111111", width: 2 },
      })),
    }),
  };
};

export const heatPanels = (rows) => {
  const grids = [...byWorld(rows)].map(([key, group]) => ({ key, group, ...cellsOf(group) }));
  return mostFirst(
    grids.filter(({ sizes, names }) => sizes.length > 1 && names.length > 1),
    ({ cells }) => cells.flat().filter((row) => row !== null).length,
  ).map((grid) => lazily(
    { key: grid.key, title: `${worldTitle(grid.group[0])} (ms)`, height: 80 + 44 * grid.names.length }, () => heatPanel(grid),
  ));
};
