// Filter figures by the selected cases. Python gives each point (`customdata`) or each trace (`meta`) the id of its case,
// "a|b" if it belongs to several cases, or "all" if it is computed from all of them.
import { rowOf } from "../core/data.js";
import { count, fixed } from "../core/format.js";
import { isSelected, state } from "../core/state.js";
import { legendLines, nameLines, onPhone } from "./layout.js";

export const shows = (ids) => !ids || !state.filters.size || (ids !== "all" && ids.split("|").some(isSelected));
// Whether a figure has a point or trace of a selected case. Figures without ids are always drawn.
const ownOf = ({ meta, customdata }) => (meta ? [meta] : (customdata ?? []).filter(Boolean));
export const isDrawn = ({ data }) => {
  const every = data.filter((trace) => ownOf(trace).length);
  return !every.length || every.some((trace) => shows(trace.meta) && ownOf(trace).some(shows));
};

// The case that a click on a point opens: the first selected one of its cases.
export const caseAt = ({ customdata, data }) => {
  const ids = `${customdata ?? ""}|${data.meta ?? ""}`.split("|").filter((id) => rowOf.has(id));
  return ids.find(isSelected) || ids[0];
};

// Return a trace with only the points in `keep`: shorten each list that has a value for every point.
const withPoints = (value, keep) => {
  if (Array.isArray(value)) return value.length === keep.length ? value.filter((_, i) => keep[i]) : value;
  if (!value || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, withPoints(part, keep)]));
};
const filtered = (traces, keep) => traces.map((trace) => {
  const kept = trace.x.map((_, i) => keep(trace, i));
  return kept.every(Boolean) ? trace : withPoints(trace, kept);
}).filter(({ x }, i) => x.length || !traces[i].x.length);

// Keep the name of a legend group if filters removed the trace that showed it.
const named = (traces, all) => {
  const groups = new Set(all.filter(({ legendgroup, showlegend }) => legendgroup && showlegend !== false).map(({ legendgroup }) => legendgroup));
  return traces.map((trace, i) => {
    const first = traces.findIndex(({ legendgroup }) => legendgroup === trace.legendgroup) === i;
    const missing = first && groups.has(trace.legendgroup)
      && !traces.some(({ legendgroup, showlegend }) => legendgroup === trace.legendgroup && showlegend !== false);
    return missing ? { ...trace, showlegend: true } : trace;
  });
};

// Return a figure that has a row for each name, with only the rows of selected cases. At most `most` are shown: those with
// the lowest `order`. `head` is the height of axis and legend in pixels, and `least` the minimum number of text lines in a
// row.
const LEAST_HEIGHT = 60;  // of one row; with less, plotly leaves no space for the axis
const inRows = (traces, layout, { most, which, head, least, order }) => {
  const rowAt = (trace, i) => Math.round(trace.y[i]);
  const there = [...new Set(traces.flatMap((trace) => trace.y.map((_, i) => rowAt(trace, i))))].sort((a, b) => a - b);
  const first = order ? [...there].sort((a, b) => order[a] - order[b]) : there;
  const shown = first.slice(0, most).sort((a, b) => a - b);
  const place = new Map(shown.map((row, at) => [row, at]));
  const kept = filtered(traces, (trace, i) => place.has(rowAt(trace, i))).map((trace) => ({
    ...trace, y: trace.y.map((y) => place.get(Math.round(y)) + y - Math.round(y)),
  }));
  const names = shown.map((row) => layout.yaxis.ticktext[row]);
  const lines = Math.max(document.documentElement.dataset.print ? 1 : least, ...names.map((name) => nameLines(name).length));
  const legend = onPhone() && layout.showlegend !== false ? legendLines(kept) - 1 : 0;
  return {
    traces: kept,
    layout: { ...layout, yaxis: { ...layout.yaxis, tickvals: shown.map((_, at) => at), ticktext: names, range: [shown.length - 0.5, -0.5] } },
    height: head + Math.max(LEAST_HEIGHT, (12 + 16 * lines) * shown.length) + 19 * Math.max(0, legend),
    note: there.length > shown.length ? `the ${fixed(most)} ${which} of ${count(there.length, "configuration")}` : "",
  };
};

// Return {traces, layout, height, note} of a figure {data, layout}.
export const ofSelected = ({ data, layout }) => {
  const own = data.filter(({ meta }) => shows(meta));
  const traces = named(filtered(own, ({ customdata }, i) => shows(customdata?.[i])), data);
  const { rows, ...meta } = layout.meta ?? {};
  return rows ? inRows(traces, { ...layout, meta }, rows) : { traces, layout };
};
