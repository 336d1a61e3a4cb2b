// Single collectives: bus bandwidth against size, and measured times over the fitted formula; a panel for each
// operation and world size, a line per algorithm. Sizes and points are tables of their own, each row of one case.
import { busSizes, cases, data, distinct, groupBy } from "../core/data.js";
import { count, known, plain, say, sizeText } from "../core/format.js";
import { onChange, selected } from "../core/state.js";
import { ERROR_BARS } from "./cases.js";
import { laidOut } from "./layout.js";

const fitPoints = data.points || { n: 0 };

// A line looks as its algorithm does on every page; one more line of it, with other ranks a node, is dotted.
const styleOfLine = (row, before) => {
  const style = data.styles.algorithm[cases.algorithm[row]];
  const again = before.some(([, [first]]) => cases.algorithm[first] === cases.algorithm[row]);
  return again ? { ...style, dash: "dot", symbol: `${style.symbol}-open` } : style;
};

// The rows of `table` that belong to the selected cases, by panel and then by line, in the order of the cases.
const byQuestion = (table, rows) => {
  const of = new Map(rows.map((row) => [row, []]));
  for (let i = 0; i < table.n; i += 1) of.get(table.case[i])?.push(i);
  const panels = groupBy(rows.filter((row) => of.get(row).length), (row) => cases.question[row]);
  return [...panels].map(([key, own]) => ({
    key, title: cases.question[own[0]],
    lines: [...groupBy(own, (row) => cases.line[row])].map(([name, ofLine], at, all) => ({
      name, style: styleOfLine(ofLine[0], all.slice(0, at)),
      rows: ofLine.flatMap((row) => of.get(row)).sort((a, b) => table.bytes[a] - table.bytes[b]),
    })),
  }));
};

// A tick a size, at its logarithm; with many sizes, every so many.
const sizeAxis = (bytes) => {
  const every = distinct(bytes).sort((a, b) => a - b);
  const step = Math.max(1, Math.ceil(every.length / 8));
  const shown = every.filter((_, i) => i % step === 0);
  return { tickvals: shown.map(Math.log2), ticktext: shown.map(sizeText) };
};
// Logarithmic, with ticks at 1, 2 and 5 times the powers of ten that are within reach.
const timeAxis = (ms) => {
  const powers = ms.map(Math.log10);
  const [low, high] = [Math.floor(Math.min(...powers)), Math.ceil(Math.max(...powers))];
  const ticks = [];
  for (let power = low - 1; power <= high; power += 1) ticks.push(...[1, 2, 5].map((digit) => digit * 10 ** power));
  return { type: "log", tickvals: ticks, ticktext: ticks.map((tick) => String(Number(tick.toPrecision(1)))) };
};
const sizePanel = ({ key, title }, traces, y, yaxis) => ({
  key, title, traces, height: 420,
  layout: laidOut("size of the whole buffer", y, {
    xaxis: sizeAxis(traces.flatMap((trace) => trace.x.map((log) => Math.round(2 ** log)))), yaxis,
  }),
});

export const busPanels = (rows) => byQuestion(busSizes, rows).flatMap((panel) => {
  const traces = panel.lines.flatMap(({ name, style, rows: every }) => {
    const own = every.filter((i) => busSizes.drawn[i]);
    if (!own.length) return [];
    const moved = (i) => busSizes.busbw[i] * busSizes.call_s[i];  // GB on the bus: over a time, a bandwidth
    return [{
      type: "scatter", mode: "lines+markers", name: plain(name),
      x: own.map((i) => Math.log2(busSizes.bytes[i])), y: own.map((i) => busSizes.busbw[i]),
      error_y: {
        ...ERROR_BARS,
        array: own.map((i) => moved(i) / busSizes.low_s[i] - busSizes.busbw[i]),
        arrayminus: own.map((i) => busSizes.busbw[i] - moved(i) / busSizes.high_s[i]),
      },
      text: own.map((i) => [
        `<b>${plain(name)}</b>, ${sizeText(busSizes.bytes[i])}`,
        `${say.digits(busSizes.busbw[i])} GB/s in ${say.us(busSizes.call_s[i])} µs`,
        known(busSizes.spread[i]) ? `slowest launch over fastest: ${say.signed(busSizes.spread[i])}` : "spread unknown: one launch",
        `${busSizes.good[i]} of ${count(busSizes.launches[i], "launch")} ok`,
      ].join("<br>")),
      hovertemplate: "%{text}<extra></extra>",
      line: { color: style.color, dash: style.dash }, marker: { color: style.color, size: 8, symbol: style.symbol },
    }];
  });
  return traces.length ? [sizePanel(panel, traces, "bus bandwidth (GB/s)", { rangemode: "tozero" })] : [];
});

export const fitPanels = (rows) => byQuestion(fitPoints, rows).map((panel) => {
  const traces = panel.lines.flatMap(({ name, style, rows: own }) => {
    const line = own.filter((i, at) => at === 0 || fitPoints.bytes[i] !== fitPoints.bytes[own[at - 1]]);
    return [{
      type: "scatter", mode: "lines", showlegend: false, hoverinfo: "skip", name: plain(name), legendgroup: plain(name),
      x: line.map((i) => Math.log2(fitPoints.bytes[i])), y: line.map((i) => fitPoints.fitted_s[i] * 1e3),
      line: { color: style.color, dash: style.dash, width: 1.5 },
    }, {
      type: "scatter", mode: "markers", name: plain(name), legendgroup: plain(name),
      x: own.map((i) => Math.log2(fitPoints.bytes[i])), y: own.map((i) => fitPoints.measured_s[i] * 1e3),
      text: own.map((i) => [
        `<b>${plain(name)}</b>, ${sizeText(fitPoints.bytes[i])}`,
        `${say.ms(fitPoints.measured_s[i])} ms, fitted ${say.ms(fitPoints.fitted_s[i])} ms`,
      ].join("<br>")),
      hovertemplate: "%{text}<extra></extra>",
      marker: { color: style.color, size: 7, symbol: style.symbol, opacity: 0.75 },
    }];
  });
  return sizePanel(panel, traces, "time (ms)", timeAxis(traces.flatMap((trace) => trace.y)));
});

// A fitted constant is of many cases: it is shown while one of them is selected.
const showFits = () => {
  const chosenRows = new Set(selected());
  for (const fit of document.querySelectorAll("[data-fit]")) {
    fit.hidden = !data.fits[Number(fit.dataset.fit)].some((row) => chosenRows.has(row));
  }
};
export const startFits = () => {
  if (!data.fits) return;
  showFits();
  onChange((what) => { if (what === "filters" || what === "address") showFits(); });
};
