// How far launches agree: their spread around their case's step time, their drift, and what the order in which they ran did.
import { cases, counts, data, distinct, groupBy, launches, launchesOf } from "../core/data.js";
import { count, fixed, known, plain, say } from "../core/format.js";
import { BAND, NEUTRAL, barHeight } from "./cases.js";
import { colour, laidOut, nameAxis } from "./layout.js";

const MOST_MARKS = 1000;  // marks in one figure; more are a cloud, and slow
const MOST_SPREAD = 16;
const MOST_BINS = 40;

// The launches of cases, as they ran.
const launchesIn = (rows) => rows.flatMap((row) => launchesOf[row]).sort((a, b) => a - b);

const launchHover = (i, told) => [
  `<b>${plain(cases.label[launches.case[i]])}</b>`, `block ${launches.block[i]}: ${say.ms(launches.launch_step_s[i])} ms per step`, told,
].join("<br>");

// At most `most` of a list, evenly chosen.
const thinned = (list, most) => {
  if (list.length <= most) return list;
  return Array.from({ length: most }, (_, k) => list[Math.floor((k * list.length) / most)]);
};

// A legend of many strategies would take the figure's room; hovering has them.
const strategyLegend = (own) => {
  const n = distinct(own.map((i) => cases.strategy[launches.case[i]])).length;
  return n > 1 && n <= 4;
};
// Marks of launches, a trace for each strategy.
const launchMarks = (own, x, y, told) => [...groupBy(own, (i) => cases.strategy[launches.case[i]])].map(([name, group]) => {
  const style = data.styles.strategy[name];
  return {
    type: "scatter", mode: "markers", name: plain(name), showlegend: strategyLegend(own), x: group.map(x), y: group.map(y),
    // Not as `ids`: those are one each, and a case has several launches.
    customdata: group.map((i) => cases.case_id[launches.case[i]]), text: group.map((i) => launchHover(i, told(i))),
    hovertemplate: "%{text}<extra></extra>",
    marker: { color: style.color, symbol: style.symbol, size: own.length > 400 ? 4 : 7, opacity: own.length > 400 ? 0.6 : 0.9 },
  };
});
// Of few launches no fraction is marked.
const wholeTicks = (most) => (most <= 12 ? { dtick: 1 } : {});
const zeroLine = { zeroline: true, zerolinewidth: 1 };
const band = (axis, share) => ({
  ...BAND,
  ...(axis === "x" ? { x0: -share * 100, x1: share * 100, yref: "paper", y0: 0, y1: 1 }
    : { y0: -share * 100, y1: share * 100, xref: "paper", x0: 0, x1: 1 }),
});
// What launches of the same were seen to differ by, where it is known for the statistic of all these cases.
const sameBand = (rows, axis) => {
  const statistics = distinct(rows.map((row) => cases.statistic[row]));
  const share = statistics.length === 1 ? data.limits.aa[statistics[0]] : undefined;
  return share === undefined ? [] : [band(axis, share)];
};

// A round width: 1, 2 or 5 times a power of ten.
const roundWidth = (least) => {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((of) => of * power).find((width) => width >= least * (1 - 1e-9));
};

// How many launches lie how far from their mean. The ends hold all that is farther: nothing is left out.
const histogram = (shares) => {
  const sizes = shares.map(Math.abs).sort((a, b) => a - b);
  const reach = Math.max(sizes[Math.floor((sizes.length - 1) * 0.98)] * 1.25, 1e-4);
  const width = roundWidth((2 * reach) / MOST_BINS);
  const most = Math.ceil(reach / width);
  const bins = new Map();
  for (const share of shares) {
    const bin = Math.max(-most, Math.min(most, Math.round(share / width)));
    bins.set(bin, (bins.get(bin) || 0) + 1);
  }
  const between = (bin) => {
    if (Math.abs(bin) === most) return `${bin < 0 ? "below" : "above"} ${say.signed((bin - Math.sign(bin) / 2) * width)}`;
    return `${say.signed((bin - 0.5) * width)} to ${say.signed((bin + 0.5) * width)}`;
  };
  const places = [...bins.keys()].sort((a, b) => a - b);
  return {
    type: "bar", x: places.map((bin) => bin * width * 100), y: places.map((bin) => bins.get(bin)),
    width: width * 100 * 0.94, marker: { color: NEUTRAL },
    text: places.map((bin) => `${count(bins.get(bin), "launch")} ${between(bin)}`),
    textposition: "none", hovertemplate: "%{text}<extra></extra>",
  };
};

export const spreadPanels = (rows) => {
  const from = launches.from_case;
  const own = launchesIn(rows).filter((i) => known(from[i]));
  if (!own.length) return [];
  const widest = rows.filter((row) => known(cases.spread[row])).sort((a, b) => cases.spread[b] - cases.spread[a]);
  const shown = widest.slice(0, MOST_SPREAD);
  const places = new Map(shown.map((row, at) => [row, at]));
  const marks = shown.flatMap((row) => launchesOf[row]).filter((i) => known(from[i]));
  const percentFrom = (i) => from[i] * 100;
  const bins = histogram(own.map((i) => from[i]));
  return [
    {
      key: "spread-all", title: `${count(own.length, "launch")} of ${count(widest.length, "case")}`, height: 260, wide: true,
      traces: [bins],
      layout: laidOut("from its case's step time (%)", "launches", {
        shapes: sameBand(rows, "x"), bargap: 0, yaxis: wholeTicks(Math.max(...bins.y)),
      }),
    },
    {
      key: "spread-cases", wide: true, height: barHeight(shown, 60, 1),
      title: widest.length > shown.length ? `The ${MOST_SPREAD} cases whose launches differ most` : "Case by case, those that differ most first",
      traces: launchMarks(marks, percentFrom, (i) => places.get(launches.case[i]), (i) => `${say.signed(from[i])} from its case's step time`),
      layout: laidOut("from its case's step time (%)", "", { showlegend: false, yaxis: nameAxis(shown), xaxis: zeroLine, shapes: sameBand(shown, "x") }),
    },
  ];
};

const drawnOf = (drawn, all, which = "") => (drawn.length === all.length
  ? count(all.length, "launch") : `${fixed(drawn.length, 0)} of ${count(all.length, "launch")} are drawn, ${which}evenly chosen`);
const placesInOrder = (own) => new Map(own.map((i, at) => [i, at + 1]));

export const driftPanels = (rows) => {
  const limit = (i) => data.limits.drift[cases.device[launches.case[i]]];
  const own = launchesIn(rows).filter((i) => counts(i) && known(launches.drift[i]));
  if (!own.length) return [];
  const place = placesInOrder(own);
  const beyond = own.filter((i) => Math.abs(launches.drift[i]) > limit(i));
  const farthest = [...beyond].sort((a, b) => Math.abs(launches.drift[b]) - Math.abs(launches.drift[a])).slice(0, MOST_MARKS / 2);
  const outside = new Set(beyond);
  const drawn = [...farthest, ...thinned(own.filter((i) => !outside.has(i)), MOST_MARKS - farthest.length)];
  const which = farthest.length ? `the ${fixed(farthest.length, 0)} farthest beyond the dashed lines and others ` : "";
  const limits = distinct(own.map(limit)).filter(known);
  return [{
    key: "drift", wide: true, height: 340,
    title: `${drawnOf(drawn, own, which)} · ${fixed(beyond.length, 0)} beyond the dashed lines`,
    traces: launchMarks(drawn, (i) => place.get(i), (i) => launches.drift[i] * 100, (i) => `drift ${say.signed(launches.drift[i])}`),
    layout: laidOut("launches, as they ran", "last third over first (%)", {
      xaxis: wholeTicks(own.length), yaxis: zeroLine,
      shapes: limits.flatMap((share) => [-share, share]).map((share) => ({
        type: "line", xref: "paper", x0: 0, x1: 1, y0: share * 100, y1: share * 100,
        line: { color: colour("--soft"), width: 1.2, dash: "dash" },
      })),
    }),
  }];
};

const blocks = data.blocks || { n: 0 };
export const orderPanels = (rows) => {
  const from = launches.from_case;
  const own = launchesIn(rows).filter((i) => known(from[i]));
  if (!own.length) return [];
  const place = placesInOrder(own);
  const drawn = thinned(own, MOST_MARKS);
  // A block's median, from its first launch to its last; of all its launches, selected and drawn or not.
  const line = { x: [], y: [], text: [] };
  for (const [block, group] of groupBy(own, (i) => launches.block[i])) {
    const level = blocks.median[blocks.block.indexOf(block)];
    line.x.push(place.get(group[0]), place.get(group.at(-1)), null);
    line.y.push(level * 100, level * 100, null);
    const said = `block ${block}: median ${say.signed(level)}`;
    line.text.push(said, said, "");
  }
  return [{
    key: "order", wide: true, height: 340, title: drawnOf(drawn, own),
    traces: [
      ...launchMarks(drawn, (i) => place.get(i), (i) => from[i] * 100, (i) => `${say.signed(from[i])} from its case's step time`),
      {
        type: "scatter", mode: "lines+markers", name: "median of a block", showlegend: strategyLegend(drawn), ...line, line: { color: colour("--ink"), width: 2 },
        marker: { color: colour("--ink"), size: 5 }, hovertemplate: "%{text}<extra></extra>",
      },
    ],
    layout: laidOut("launches, as they ran", "from its case's step time (%)", {
      xaxis: wholeTicks(own.length), yaxis: zeroLine, shapes: sameBand(rows, "y"),
    }),
  }];
};
