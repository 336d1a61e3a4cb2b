// Bars of cases: the parts of a step, memory, and what devices did.
import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";

import { aCase, givePage } from "./page.js";

const MIB = 2 ** 20;
const look = (...columns) => columns.map((column) => ({ column, name: column.replace(/_(s|bytes)$/, ""), color: `#${column}` }));
const state = (parameters, theory) => ({
  state_bytes: 4 * parameters * MIB, state_theory_bytes: theory * MIB, parameter_bytes: parameters * MIB, gradient_bytes: parameters * MIB,
  optimizer_bytes: 2 * parameters * MIB,
});
const instrumented = { instrumented_s: 10, instrumented_data_s: 1, compute_s: 7, exposed_s: 1.5, idle_s: 0.5, overlapped_s: 3, exposed_share: 0.15 };  // seconds
const CASES = [
  aCase({ case_id: "fsdp", label: "fsdp", strategy: "fsdp", world_size: 4, ...instrumented, ...state(3, 12), peak_memory_bytes: 100 * MIB, used_bytes: null, mfu: null }),
  aCase({
    case_id: "ddp", label: "ddp", ...instrumented, unknown_calls: 2, ...state(12, 48), data_s: 0.25, forward_s: 1.5, backward_s: 2.75, optimizer_s: 0.5,
    flops_per_s: 2.5e12, mfu_reason: "no <peak> is known", joules_per_step: 100, joules_per_token: 0.195,
  }),
  aCase({ case_id: "ddp 4", label: "ddp 4", world_size: 4, bucket_mib: 1, ...state(12, 48) }),
  aCase({ case_id: "ddp again", label: "ddp again", world_size: 4, bucket_mib: 4, ...state(12, 48) }),
  ...Array.from({ length: 20 }, (_, i) => aCase({ case_id: `single ${i}`, label: `single ${i}`, strategy: "single", world_size: 1, peak_memory_bytes: MIB })),
];
givePage({
  tables: { cases: CASES },
  bars: {
    parts: look("data_s", "forward_s", "backward_s", "optimizer_s"),
    shares: look("instrumented_data_s", "compute_s", "exposed_s", "idle_s"),
    peaks: look("peak_memory_bytes", "used_bytes"),
    state: look("parameter_bytes", "gradient_bytes", "optimizer_bytes"),
  },
});
const { drawers } = await import("../../reports/script/charts/drawers.js");
const every = CASES.map((_, row) => row);
const named = ({ traces }) => Object.fromEntries(traces.filter(({ name }) => name !== undefined).map((trace) => [trace.name, trace]));

beforeEach(() => { delete globalThis.document.documentElement.dataset.print; });

test("bars of an instrumented step lie one after the other, and what is hidden ends where the exposed begins", () => {
  const [panel] = drawers.shares(every);
  const bars = named(panel);
  assert.deepEqual(Object.entries(bars).map(([name, { base, x }]) => [name, base[0], x[0]]), [
    ["instrumented_data", 0, 1000], ["compute", 1000, 7000], ["exposed", 8000, 1500], ["idle", 9500, 500],
    ["overlapped (inside compute)", 5000, 3000],
  ]);
  assert.deepEqual(panel.traces.at(-1).text, [" 15 %", " 15 %"]);
  assert.match(bars.compute.hovertext[0], /^compute: 7,000 ms, 70 % of the step<br><b>fsdp<\/b><br>50.0 ms per step/);
  // Calls of unknown length make the hidden part a lower bound.
  assert.match(bars["overlapped (inside compute)"].hovertext[1], /^overlapped: ≥ 3,000 ms, 30 % of the step/);
});

test("parts of timed steps are stacked and say their share", () => {
  const [panel] = drawers.step_parts(every);
  assert.equal(panel.layout.barmode, "stack");
  assert.deepEqual(panel.traces.map(({ x }) => x), [[250], [1500], [2750], [500]]);
  assert.match(named(panel).backward.hovertext[0], /^backward: 2,750 ms, 55 % of its parts/);
});

test("many cases are cut to the fastest, and the heading says of how many", () => {
  const [panel] = drawers.peak_memory(every);
  assert.equal(panel.title, "the 16 fastest of 21 cases");
  assert.deepEqual([...new Set(panel.traces.map(({ x }) => x.length))], [16]);
  assert.deepEqual(panel.traces.map(({ name }) => name), ["resident set", "training state, theory"]);
  const [one] = drawers.peak_memory([0]);
  assert.deepEqual([one.title, one.traces.map(({ x }) => x)], ["", [[100], [12]]]);
});

test("training state is drawn against ranks, and of cases that hold the same once", () => {
  const [against, two, four] = drawers.states(every);
  const lines = named(against);
  assert.deepEqual([lines.ddp.x, lines.ddp.y, lines["ddp, theory"].y], [[2, 4], [48, 48], [48, 48]]);
  assert.deepEqual([lines.fsdp.x, lines.fsdp.y], [[4], [12]]);
  assert.deepEqual([two.title, four.title], ["2 ranks", "4 ranks"]);
  assert.deepEqual(four.traces.map(({ x }) => x), [[3, 12], [3, 12], [6, 24], [12, 48]]);
  assert.deepEqual(four.traces[0].ids, ["fsdp", "ddp 4"]);
  assert.deepEqual(drawers.states([0]).map(({ title }) => title), ["4 ranks"]);
});

test("a share of a peak that nobody knows is what the devices did, with its unit", () => {
  const [panel] = drawers.usage(every);
  assert.deepEqual([panel.layout.xaxis.title.text, panel.traces[0].x], ["TFLOP/s of all ranks", [2.5]]);
  assert.match(panel.traces[0].hovertext[0], /^2.50 TFLOP\/s<br>MFU unknown: no &lt;peak&gt; is known<br>/);
});

test("energy is said of a step and of a token", () => {
  const [panel] = drawers.energy(every);
  assert.deepEqual(panel.traces[0].x, [100]);
  assert.match(panel.traces[0].hovertext[0], /^100 J per step, 195 mJ per token<br>/);
});
