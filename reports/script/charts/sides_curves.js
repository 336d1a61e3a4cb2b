// Curves of several sides over each other: a colour a side.
import { cases, data, distinct, groupBy, sideColumn, sides } from "../core/data.js";
import { count, known, plain, say } from "../core/format.js";
import { bucketPlaces, curvesOf } from "./buckets.js";
import { bucketSizes, firstOfEach, inMs, launchBars, lazily, measured, titled, worldKey } from "./cases.js";
import { laidOut } from "./layout.js";
import { sideName, styleOf } from "./sides.js";

const sideHover = (side, row) => [
  `<b>${plain(cases.label[row])}</b>`,
  `${plain(sides[side].name)}: ${say.ms(sideColumn("step_time_s", side)[row])} ms per step`,
  `${sideColumn("n_ok", side)[row]} of ${count(sideColumn("n_launches", side)[row], "launch")} ok`,
].join("<br>");

// Step time against bucket size: a panel for each work, strategy, algorithm and world size, a curve a side.
const sidesBucketPanel = (group, sizes) => {
  const places = bucketPlaces(sizes);
  const traces = sides.flatMap((_, side) => {
    const aside = (side - (sides.length - 1) / 2) * 0.06;  // so that error bars do not hide each other
    const there = group.filter((row) => known(sideColumn("step_time_s", side)[row]));
    there.sort((a, b) => sideColumn("step_time_s", side)[a] - sideColumn("step_time_s", side)[b]);
    const draw = (some, showlegend) => ({
      type: "scatter", mode: some.length > 1 ? "lines+markers" : "markers", name: sideName(side), showlegend,
      legendgroup: String(side), ids: some.map((row) => cases.case_id[row]), x: some.map((row) => places.get(cases.bucket_mib[row]) + aside),
      y: some.map((row) => sideColumn("step_time_s", side)[row] * 1e3), error_y: launchBars(some, inMs, (name) => sideColumn(name, side)),
      line: { color: sides[side].color }, marker: styleOf(side), text: some.map((row) => sideHover(side, row)),
      hovertemplate: "%{text}<extra></extra>",
    });
    return curvesOf(firstOfEach(there, "bucket_mib")).map(([some, shown]) => draw(some, shown));
  });
  const layout = laidOut("bucket size (MiB)", "step time (ms)", {
    xaxis: { tickvals: sizes.map((mib) => places.get(mib)), ticktext: sizes.map(say.bucket) }, showlegend: true,
  });
  return { traces, layout };
};
export const sidesBucketsPanels = (rows) => {
  const groups = [...groupBy(measured(rows), (row) => `${worldKey(row)} ${cases.algorithm[row]}`)];
  return groups.map(([key, group]) => [key, group, bucketSizes(group)]).filter(([, , sizes]) => sizes.length > 1).map(
    ([key, [first, ...more], sizes]) => lazily({
      key, height: 360, title: titled(
        first, `${cases.strategy[first]} ${cases.algorithm[first]}, ${count(cases.world_size[first], "rank")}`,
      ),
    }, () => sidesBucketPanel([first, ...more], sizes)),
  );
};

// Throughput and efficiency against the world size: a colour a side, a dash a strategy.
const curvesOfSides = data.scaling || { n: 0 };
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
export const sidesScalingPanels = (rows) => {
  const chosen = new Set(rows);
  const points = Array.from({ length: curvesOfSides.n }, (_, i) => i).filter((i) => chosen.has(curvesOfSides.case[i]));
  return [...groupBy(points, (i) => curvesOfSides.scaling[i])].flatMap(([scaling, group]) => {
    const strategies = distinct(group.map((i) => curvesOfSides.strategy[i]));
    const sizes = distinct(group.map((i) => curvesOfSides.world_size[i])).sort((a, b) => a - b);
    if (sizes.length < 2) return [];
    const best = [...groupBy(group, (i) => JSON.stringify([curvesOfSides.side[i], curvesOfSides.strategy[i]])).values()].map((own) => {
      const curves = [...groupBy(own, (i) => curvesOfSides.curve[i]).values()];
      for (const curve of curves) curve.sort((a, b) => curvesOfSides.world_size[a] - curvesOfSides.world_size[b]);
      const last = (curve) => curvesOfSides.tokens_per_s[curve.at(-1)];
      return curves.reduce((a, b) => (b.length > a.length || (b.length === a.length && last(b) > last(a)) ? b : a));
    });
    const unit = data.works[cases.work[curvesOfSides.case[group[0]]]].unit;
    const draw = (values, scale, said) => best.map((own) => {
      const [first] = own;
      const [side, strategy] = [curvesOfSides.side[first], curvesOfSides.strategy[first]];
      const how = [strategy, curvesOfSides.algorithm[first], `bucket ${say.bucket(curvesOfSides.bucket_mib[first])}`].join(", ");
      return {
        type: "scatter", mode: "lines+markers", legendgroup: `${side} ${strategy}`,
        name: strategies.length > 1 ? `${sideName(side)}, ${plain(strategy)}` : sideName(side),
        ids: own.map((i) => cases.case_id[curvesOfSides.case[i]]), x: own.map((i) => curvesOfSides.world_size[i]), y: own.map((i) => values[i] * scale),
        line: { color: sides[side].color, dash: DASHES[strategies.indexOf(strategy) % DASHES.length] },
        marker: { ...styleOf(side), size: 8 },
        text: own.map((i) => [
          `<b>${plain(sides[side].name)}</b>`, plain(how), `${count(curvesOfSides.world_size[i], "rank")}: ${said(values[i])}`,
        ].join("<br>")),
        hovertemplate: "%{text}<extra></extra>",
      };
    });
    const ideal = {
      type: "scatter", mode: "lines", name: "ideal", hoverinfo: "skip", x: [sizes[0], sizes.at(-1)], y: [100, 100],
      line: { color: "#999999", dash: "dot", width: 1.5 },
    };
    const wide = sizes.at(-1) > 16 * sizes[0];
    const layout = (y, log) => laidOut("world size (ranks)", y, {
      xaxis: { type: wide ? "log" : "linear", tickvals: sizes, ticktext: sizes.map(String) },
      yaxis: log ? { type: "log" } : { rangemode: "tozero" }, showlegend: true,
    });
    const title = data.scalings[scaling];
    const height = 340 + 10 * best.length;
    return [
      {
        key: `throughput-${scaling}`, title: `${title}: throughput`, height, layout: layout(`throughput (${unit}/s)`, wide),
        traces: draw(curvesOfSides.tokens_per_s, 1, (value) => `${say.rate(value)} ${unit}/s`),
      },
      {
        key: `efficiency-${scaling}`, title: `${title}: efficiency`, height, layout: layout("efficiency (%)", false),
        traces: [ideal, ...draw(curvesOfSides.efficiency, 100, say.percent)],
      },
    ];
  });
};
