// Where a timed step's time goes; and of instrumented steps compute, and exposed and overlapped communication.
import { cases, data } from "../core/data.js";
import { digits, joulesSaid, known, plain, say, scaleOf } from "../core/format.js";
import { anyKnown, barHeight, barOf, barPanels, legendHeight, partsLegend, scaledBy } from "./cases.js";
import { laidOut, nameAxis } from "./layout.js";

export const stepPartsPanels = (rows) => barPanels(
  "parts", rows, (row) => data.bars.parts.some(({ column }) => known(cases[column][row])),
  (group) => {
    const parts = data.bars.parts.filter(({ column }) => anyKnown(group, column));
    const whole = (row) => parts.reduce((sum, { column }) => sum + (cases[column][row] ?? 0), 0);
    return {
      traces: parts.map((part) => barOf(group, part, (row) => scaledBy(cases[part.column][row], 1e3), (row) => {
        const seconds = cases[part.column][row];
        return known(seconds) ? `${part.name}: ${say.ms(seconds)} ms, ${say.percent(seconds / whole(row))} of its parts` : "";
      })),
      layout: laidOut("median time of a step (ms)", "", {
        barmode: "stack", bargap: 0.35, legend: partsLegend, yaxis: nameAxis(group),
      }),
      height: barHeight(group, 110) + legendHeight(parts.length),
    };
  },
);

const EXPOSED = 2;  // its place among the shares; before it lie data and compute
const ROOM = 1.3;  // to the right of the longest bar, for its share

// What adds up to a step. Below it, thin, the overlapped communication: it lies inside compute, so it ends where
// the exposed part begins.
export const sharesPanels = (rows) => barPanels("shares", rows, (row) => known(cases.instrumented_s[row]), (group) => {
  const { shares } = data.bars;
  const before = (row, most) => shares.slice(0, most).reduce((sum, { column }) => sum + (cases[column][row] ?? 0), 0);
  const ms = (seconds) => scaledBy(seconds, 1e3);
  const said = (name, seconds, row, least = "") => (
    known(seconds) ? `${name}: ${least}${say.ms(seconds)} ms, ${say.percent(seconds / cases.instrumented_s[row])} of the step` : ""
  );
  const bars = shares.map((part, i) => barOf(
    group, part, (row) => ms(cases[part.column][row]), (row) => said(part.name, cases[part.column][row], row),
    { base: group.map((row) => ms(before(row, i))), y: group.map((_, place) => place - 0.08), width: 0.5 },
  ));
  const { color } = shares[EXPOSED];
  const overlapped = barOf(
    group, { color, name: "overlapped (inside compute)" }, (row) => ms(cases.overlapped_s[row]),
    (row) => said("overlapped", cases.overlapped_s[row], row, cases.unknown_calls[row] ? "≥ " : ""),
    {
      base: group.map((row) => ms(Math.max(0, before(row, EXPOSED) - (cases.overlapped_s[row] ?? 0)))),
      y: group.map((_, place) => place + 0.3), width: 0.2,
      marker: {
        color, line: { width: 0 }, pattern: { shape: "/", size: 5, solidity: 0.45, fgcolor: color, bgcolor: "rgba(0,0,0,0)" },
      },
    },
  );
  const ends = group.map((row) => ms(before(row, shares.length)));
  const texts = {
    type: "scatter", mode: "text", x: ends, y: group.map((_, place) => place - 0.08), showlegend: false, hoverinfo: "skip",
    text: group.map((row) => ` ${known(cases.exposed_share[row]) ? say.percent(cases.exposed_share[row]) : "unknown"}`),
    textposition: "middle right",
  };
  return {
    traces: [...bars, overlapped, texts], height: barHeight(group, 120) + legendHeight(bars.length + 1),
    layout: laidOut("an instrumented step (ms)", "", {
      barmode: "overlay", legend: partsLegend, yaxis: nameAxis(group), xaxis: { range: [0, ROOM * Math.max(...ends)] },
    }),
  };
});

// How much of the hardware is used, and the energy of a step.
const flopsSaid = (row) => {
  const [factor, prefix] = scaleOf(cases.flops_per_s[row]);
  return `${digits(cases.flops_per_s[row] * factor)} ${prefix}FLOP/s`;
};
const mfuSaid = (row) => (known(cases.mfu[row])
  ? `MFU ${digits(cases.mfu[row] * 100, 2)} %` : `MFU unknown: ${plain(cases.mfu_reason[row] ?? "")}`);

// The share of the devices' peak where it is known, else what they did.
export const usagePanels = (rows) => barPanels("use", rows, (row) => known(cases.flops_per_s[row]), (group) => {
  const shared = anyKnown(group, "mfu");
  const column = shared ? "mfu" : "flops_per_s";
  const [factor, prefix] = shared ? [100, ""] : scaleOf(Math.max(...group.map((row) => cases[column][row] ?? 0)));
  return {
    traces: [barOf(
      group, { color: "#5F6CAF", name: "" }, (row) => scaledBy(cases[column][row], factor), (row) => `${flopsSaid(row)}<br>${mfuSaid(row)}`,
    )],
    height: barHeight(group, 90),
    layout: laidOut(shared ? "model FLOPs utilization (%)" : `${prefix}FLOP/s of all ranks`, "", {
      bargap: 0.35, showlegend: false, yaxis: nameAxis(group), xaxis: { rangemode: "tozero" },
    }),
  };
});

export const energyPanels = (rows) => barPanels("energy", rows, (row) => known(cases.joules_per_step[row]), (group) => ({
  traces: [barOf(
    group, { color: "#009E73", name: "" }, (row) => cases.joules_per_step[row],
    (row) => `${joulesSaid(cases.joules_per_step[row])} per step, `
      + `${joulesSaid(cases.joules_per_token[row])} per ${data.works[cases.work[row]].unit.replace(/s$/, "")}`,
  )],
  height: barHeight(group, 90),
  layout: laidOut("energy of a step (J)", "", {
    bargap: 0.35, showlegend: false, yaxis: nameAxis(group), xaxis: { rangemode: "tozero" },
  }),
}));
