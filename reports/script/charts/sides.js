// Several sides beside each other: a colour and a symbol a side, in the order in which they were named.
import { cases, data, distinct, groupBy, others, sideColumn, sides } from "../core/data.js";
import { count, cut, known, plain, ratioHover, say } from "../core/format.js";
import { selected } from "../core/state.js";
import { barHeight, someOf, titled } from "./cases.js";
import { axisOf, laidOut, nameAxis, nameLines } from "./layout.js";

const MOST_DOTS = 30;
export const styleOf = (side) => ({ color: sides[side].color, size: 9, symbol: sides[side].symbol, opacity: 1 });
export const sideName = (side) => cut(sides[side].name, 32);

// Round places on a log axis between two ratios.
export const roundRatios = (low, high) => {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const digit of [1, 2, 5]) all.push(digit * 10 ** power);
  }
  const inside = all.filter((tick) => tick >= low && tick <= high);
  if (inside.length >= 4) return inside;
  const rough = (high - low) / 6;
  const step = [1, 2, 5, 10].map((digit) => digit * 10 ** Math.floor(Math.log10(rough))).find((each) => each >= rough);
  const even = [];
  for (let i = Math.ceil(low / step); i * step <= high; i += 1) even.push(Number((i * step).toPrecision(12)));
  return even;
};
// An axis reaches at most so many times as far as its points: the interval of two launches would press all else flat.
const REACH = 2.5;
const ratioAxis = (points) => {
  const logs = points.map(({ ratio }) => Math.log(ratio)).concat(0);
  const far = REACH * Math.max(...logs.map(Math.abs)) || 0.1;
  const ends = points.filter(({ low }) => known(low)).flatMap(({ low, high }) => [low, high])
    .map((end) => Math.max(-far, Math.min(far, Math.log(end))));
  const [low, high] = [Math.min(...logs, ...ends), Math.max(...logs, ...ends)];
  const margin = Math.max(0.04 * (high - low), 0.01);
  const tickvals = roundRatios(Math.exp(low - margin), Math.exp(high + margin));
  return {
    type: "log", range: [(low - margin) / Math.LN10, (high + margin) / Math.LN10], tickvals,
    ticktext: tickvals.map((tick) => String(tick)),
  };
};

// A dot a case and side, beside the first side: the most changed cases, those with the smallest ratio on top. `meanOf`
// gives the geometric mean of a work on a side, where it is known; it stands below the cases where none is filtered, and
// is filled where its interval tells it from 1.
const ratioPanels = (rows, name, axis, meanOf) => [...groupBy(
  rows.filter((row) => others.some((side) => known(sideColumn(name, side)[row]))), (row) => cases.work[row],
)].map(([work, all]) => {
  const logs = new Map(all.map((row) => [row, others.map((side) => sideColumn(name, side)[row]).filter(known).map(Math.log)]));
  const most = (row) => Math.max(...logs.get(row).map(Math.abs));
  const middle = (row) => logs.get(row).reduce((sum, each) => sum + each, 0) / logs.get(row).length;
  const shown = all.sort((a, b) => most(b) - most(a)).slice(0, MOST_DOTS).sort((a, b) => middle(a) - middle(b));
  const means = others.map((side) => meanOf(work, side));  // whatever is selected
  const sizes = distinct(means.filter((one) => known(one?.ratio)).map((one) => one.cases));
  const whole = sizes.some((n) => n > 1) && selected().length === cases.n;
  const meanLabel = `geometric mean${sizes.length === 1 ? ` of ${count(sizes[0], "case")}` : ""}`;
  const labels = shown.map((row) => cases.label[row]).concat(whole ? [meanLabel] : []);
  const points = [];
  const traces = others.map((side, i) => {
    const own = shown.map((row, at) => ({
      at, ratio: sideColumn(name, side)[row], low: sideColumn(`${name}_low`, side)[row], high: sideColumn(`${name}_high`, side)[row],
      label: cases.label[row], id: cases.case_id[row], told: name !== "ratio" || !sideColumn("change", side) || ["faster", "slower"].includes(sideColumn("change", side)[row]), size: 9,
    }));
    const mean = means[i];
    if (whole && mean) own.push({
      ...mean, at: shown.length, id: "", label: `geometric mean of ${count(mean.cases, "case")}`, size: 13,
      told: known(mean.low) && (mean.low > 1 || mean.high < 1),
    });
    const drawn = own.filter(({ ratio }) => known(ratio));
    points.push(...drawn);
    const aside = (i - (others.length - 1) / 2) * Math.min(0.22, 0.7 / others.length);
    const span = (end) => drawn.map((point) => (known(point.low) ? Math.abs(point[end] - point.ratio) : 0));
    return {
      type: "scatter", mode: "markers", name: sideName(side), legendgroup: String(side), showlegend: true,
      ids: drawn.map(({ id }) => id), x: drawn.map(({ ratio }) => ratio), y: drawn.map(({ at }) => at + aside),
      error_x: {
        type: "data", symmetric: false, thickness: 1.5, width: 3, color: sides[side].color, array: span("high"),
        arrayminus: span("low"),
      },
      marker: {
        ...styleOf(side), size: drawn.map(({ size }) => size), line: { width: 1.5, color: sides[side].color },
        symbol: drawn.map(({ told }) => sides[side].symbol + (told ? "" : "-open")),
      },
      text: drawn.map(({ label, ratio, low, high }) => (
        `<b>${plain(label)}</b><br>${plain(sides[side].name)}: ${ratioHover(ratio, low, high)}`
      )),
      hovertemplate: "%{text}<extra></extra>",
    };
  }).filter(({ x }) => x.length);
  const lines = Math.max(...labels.map((label) => nameLines(label).length));
  return {
    key: `${name}-${work}`, title: titled(all[0], someOf(shown, all, "most changed")), traces, wide: true,
    height: 110 + labels.length * Math.max(12 + 16 * lines, 14 + 13 * others.length),
    layout: laidOut(axis, "", {
      xaxis: ratioAxis(points),
      yaxis: axisOf(labels),
      showlegend: true,
      shapes: [{ type: "line", x0: 1, x1: 1, y0: 0, y1: 1, yref: "paper", line: { color: "#7F7F7F", width: 1.5 } }],
    }),
  };
});
const besideFirst = (what) => `${what}, ${cut(sides[0].name, 16)} = 1`;
const meansOf = (name) => (work, side) => data.works[work].means[name]?.[side - 1];
export const sidesRatiosPanels = (rows) => ratioPanels(rows, "ratio", besideFirst("step time"), meansOf("ratio"));
export const sidesPerJoulePanels = (rows) => ratioPanels(rows, "per_joule", besideFirst("tokens per joule"), meansOf("per_joule"));
export const sidesPerGbPanels = (rows) => ratioPanels(rows, "per_gb", besideFirst("tokens/s per GB"), meansOf("per_gb"));

// Peak memory of each case on each side: those that differ most first.
export const sidesMemoryPanels = (rows) => [...groupBy(rows, (row) => cases.work[row])].flatMap(([work, group]) => {
  const peaks = (row) => sides.map((_, side) => sideColumn("peak_memory_bytes", side)[row]).filter(known);
  const all = group.filter((row) => peaks(row).length);
  if (!all.length) return [];
  const apart = new Map(all.map((row) => [row, Math.max(...peaks(row)) / Math.min(...peaks(row))]));
  const largest = (row) => Math.max(...peaks(row));
  const shown = all.sort((a, b) => apart.get(b) - apart.get(a) || largest(b) - largest(a)).slice(0, MOST_DOTS);
  const traces = sides.map((_, side) => {
    const own = shown.filter((row) => known(sideColumn("peak_memory_bytes", side)[row]));
    return {
      type: "scatter", mode: "markers", name: sideName(side), marker: styleOf(side), ids: own.map((row) => cases.case_id[row]),
      x: own.map((row) => sideColumn("peak_memory_bytes", side)[row] / 2 ** 20), y: own.map((row) => shown.indexOf(row)),
      text: own.map((row) => [
        `<b>${plain(cases.label[row])}</b>`, `${plain(sides[side].name)}: ${say.mib(sideColumn("peak_memory_bytes", side)[row])} MiB`,
      ].join("<br>")),
      hovertemplate: "%{text}<extra></extra>",
    };
  });
  return [{
    key: `memory-${work}`, title: titled(all[0], someOf(shown, all, "that differ most")), traces, wide: true,
    height: barHeight(shown, 60, 1) + 20, layout: laidOut("peak memory (MiB)", "", {
      xaxis: { rangemode: "tozero" }, yaxis: nameAxis(shown), showlegend: true,
    }),
  }];
});
