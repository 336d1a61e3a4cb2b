// Memory: peaks against theory; the training state of each strategy, and what it is made of.
import { hoverOf } from "../core/cases.js";
import { cases, data, distinct, groupBy } from "../core/data.js";
import { count, cut, fixed, known, say } from "../core/format.js";
import {
  MOST_BARS, anyKnown, barHeight, barOf, barPanels, lazily, legendHeight, partsLegend, scaledBy, theoryMarks,
} from "./cases.js";
import { laidOut, nameAxis } from "./layout.js";

const inMib = (bytes) => scaledBy(bytes, 2 ** -20);
const saidMib = (name, bytes) => (known(bytes) ? `${name}: ${say.mib(bytes)} MiB` : "");
const stateSaid = (row) => (known(cases.state_theory_bytes[row])
  ? `training state by theory: ${say.mib(cases.state_theory_bytes[row])} MiB<br>measured: ${say.mib(cases.state_bytes[row])} MiB`
  : "");

export const peakMemoryPanels = (rows) => barPanels(
  "peaks", rows, (row) => data.bars.peaks.some(({ column }) => known(cases[column][row])),
  (group) => {
    const peaks = data.bars.peaks.filter(({ column }) => anyKnown(group, column)).map((peak) => (
      peak.column === "peak_memory_bytes" && cases.device[group[0]] === "cpu" ? { ...peak, name: "resident set" } : peak
    ));
    const traces = peaks.map((peak) => barOf(
      group, peak, (row) => inMib(cases[peak.column][row]), (row) => saidMib(peak.name, cases[peak.column][row]),
    ));
    if (anyKnown(group, "state_theory_bytes")) {
      traces.push({
        ...theoryMarks(group, (row) => inMib(cases.state_theory_bytes[row]), stateSaid),
        name: "training state, theory",
      });
    }
    return {
      traces, height: barHeight(group, 110, 1 + peaks.length),
      layout: laidOut(peaks.length > 1 ? "peak memory (MiB)" : `peak ${peaks[0].name} of a rank (MiB)`, "", {
        barmode: "group", bargap: 0.35, legend: partsLegend, showlegend: traces.length > 1, yaxis: nameAxis(group),
        xaxis: { rangemode: "tozero" },
      }),
    };
  },
);

// Of cases that hold the same of a strategy, the first stands for them: buckets and algorithms change nothing of it.
const heldOnce = (rows) => [...groupBy(rows, (row) => [
  cases.strategy[row], cases.world_size[row], ...data.bars.state.map(({ column }) => cases[column][row]),
].join(" ")).values()].map(([first]) => first);
const byState = (a, b) => cases.state_bytes[a] - cases.state_bytes[b] || a - b;

export const statesPanels = (rows) => {
  const models = groupBy(rows.filter((row) => known(cases.state_bytes[row])), (row) => cases.model[row]);
  return [...models].flatMap(([model, own]) => {
    const apart = models.size > 1 ? ` · ${model}` : "";
    const once = heldOnce(own).sort(byState);
    const sizes = groupBy(once, (row) => cases.world_size[row]);
    const ordered = [...sizes.keys()].sort((a, b) => a - b);
    return [
      ...(ordered.length > 1 ? [lazily(
        { key: `state-${model}`, title: `Against the world size${apart}`, height: stateHeight(once) },
        () => againstWorldSize(once, ordered),
      )] : []),
      ...ordered.map((size) => {
        const group = sizes.get(size);
        const more = group.length > MOST_BARS ? ` · the ${MOST_BARS} that hold least of ${fixed(group.length, 0)}` : "";
        return {
          key: `state-${size}-${model}`, title: `${count(size, "rank")}${apart}${more}`, ...madeOf(group.slice(0, MOST_BARS)),
        };
      }),
    ];
  });
};

const stateHeight = (rows) => 340 + 20 * (distinct(rows.map((row) => cases.strategy[row])).length + 1);

// Of a strategy with several options, the one that holds least. A line has a gap where a world size was not measured.
const againstWorldSize = (rows, sizes) => {
  const ring = (color) => ({ size: 15, symbol: "circle-open", color, line: { width: 1.5 } });
  const traces = [...groupBy(rows, (row) => cases.strategy[row])].flatMap(([strategy, own]) => {
    const least = new Map(own.map((row) => [cases.world_size[row], row]).reverse());  // the first of each stays
    const within = sizes.filter((size) => size >= Math.min(...least.keys()) && size <= Math.max(...least.keys()));
    const points = within.map((size) => least.get(size) ?? null);
    const { color, dash, symbol } = data.styles.strategy[strategy];
    const shared = (said) => ({
      type: "scatter", x: within, legendgroup: strategy, ids: points.map((row) => (row === null ? "" : cases.case_id[row])),
      hovertext: points.map((row) => (row === null ? "" : [said(row), hoverOf(row)].filter(Boolean).join("<br>"))),
      hovertemplate: "%{hovertext}<extra></extra>",
    });
    const column = (name) => points.map((row) => (row === null ? null : inMib(cases[name][row])));
    return [
      {
        ...shared((row) => saidMib("training state", cases.state_bytes[row])), mode: "lines+markers", name: cut(strategy, 34),
        y: column("state_bytes"), line: { color, dash }, marker: { size: 8, symbol },
      },
      {
        ...shared(stateSaid), mode: "markers", name: `${cut(strategy, 34)}, theory`, showlegend: false,
        y: column("state_theory_bytes"), marker: ring(color),
      },
    ];
  });
  return {
    traces: [...traces, { type: "scatter", x: [null], y: [null], mode: "markers", name: "theory", marker: ring("#888888") }],
    layout: laidOut("world size (ranks)", "training state (MiB)", {
      xaxis: { type: "log", tickvals: sizes, ticktext: sizes.map(String) }, yaxis: { rangemode: "tozero" },
    }),
  };
};

const madeOf = (rows) => ({
  traces: [
    ...data.bars.state.map((part) => barOf(
      rows, part, (row) => inMib(cases[part.column][row]), (row) => saidMib(part.name, cases[part.column][row]),
    )),
    theoryMarks(rows, (row) => inMib(cases.state_theory_bytes[row]), stateSaid),
  ],
  layout: laidOut("training state (MiB)", "", {
    barmode: "stack", bargap: 0.35, legend: partsLegend, yaxis: nameAxis(rows), xaxis: { rangemode: "tozero" },
  }),
  height: barHeight(rows, 140) + legendHeight(data.bars.state.length + 1),
});
