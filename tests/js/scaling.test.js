// Where the ideal line of scaling lies, and how far the axis follows it.
import assert from "node:assert/strict";
import test from "node:test";

import { aCase, givePage } from "./page.js";

const rate = (group, strategy, world_size, tokens_per_s, more = {}) => aCase({
  case_id: `${group} ${strategy} ${world_size}`, label: `${strategy}, ${world_size} ranks`, strategy, world_size, tokens_per_s, ...more,
});
// Three works: one that gets no faster, one that scales, and one without a single device, whose best base is not ranked.
const CURVES = [
  [0, rate(0, "single", 1, 100), rate(0, "ddp", 2, 100), rate(0, "ddp", 4, 100), rate(0, "ddp", 8, 100)],
  [1, rate(1, "single", 1, 100), rate(1, "ddp", 2, 200), rate(1, "ddp", 8, 800)],
  [2, rate(2, "ddp", 2, 80), rate(2, "ddp", 4, 160)],
  [2, rate(2, "local_only", 2, 160, { ranked: false }), rate(2, "local_only", 4, 320, { ranked: false })],
  [3, rate(3, "single", 1, 10), rate(3, "ddp", 32, 300)],
];
const cases = CURVES.flatMap(([, ...points]) => points);
const at = (point) => cases.indexOf(point);
const style = (dash) => ({ color: "#000", dash, symbol: "circle", has_algorithm: false });
givePage({
  tables: { cases },
  styles: { strategy: { single: style("solid"), ddp: style("solid"), local_only: style("dash") }, algorithm: { native: style("solid") } },
  curves: {
    groups: ["flat", "steep", "baseless", "wide"].map((title) => ({ title, unit: "samples" })),
    curves: {
      n: CURVES.length, group: CURVES.map(([group]) => group), base: CURVES.map(([, base]) => at(base)),
      n_points: CURVES.map((curve) => curve.length - 1),
    },
    points: { n: cases.length, case: cases.map(at), efficiency: cases.map(() => 1) },
  },
});
const { scalingPanels } = await import("../../reports/script/charts/scaling.js");
const panels = Object.fromEntries(scalingPanels(cases.map(at)).map((panel) => [panel.title, panel]));
const throughput = (title) => {
  const { traces, layout } = panels[`${title}: throughput`];
  return { layout, ...Object.fromEntries(traces.map((trace) => [trace.name, trace])) };
};

test("the ideal does not press the curves down", () => {
  const [flat, steep] = ["flat", "steep"].map(throughput);
  assert.equal(flat.ideal.y.at(-1), 800);
  assert.deepEqual(flat.layout.yaxis.range, [0, 157.5]);
  assert.deepEqual(steep.layout.yaxis.range, [0, 840]);
});

test("the ideal without one device is the best base that is ranked, and what is not is dashed", () => {
  const { ideal, ddp, local_only: baseline } = throughput("baseless");
  assert.deepEqual([ideal.x, ideal.y], [[2, 4], [80, 160]]);
  assert.deepEqual([ddp.line.dash, baseline.line.dash], ["solid", "dash"]);
});

test("the single device is marked while it is selected, and stays the base of efficiency when it is not", () => {
  assert.deepEqual(throughput("flat").single.x, [1]);
  const [without] = scalingPanels(cases.map(at).filter((row) => cases[row].strategy !== "single"));
  const names = without.traces.map(({ name }) => name);
  assert.deepEqual(names, ["ideal", "ddp"]);
  assert.deepEqual(without.traces[1].x, [1, 2, 4, 8]);
});

test("many ranks stand on a log axis, and a unit is the work's", () => {
  const { layout, ddp } = throughput("wide");
  assert.deepEqual([layout.xaxis.type, layout.yaxis.type, layout.xaxis.tickvals], ["log", "log", [1, 32]]);
  assert.equal(layout.yaxis.title.text, "throughput (samples/s)");
  assert.match(ddp.text[1], /<br>300 samples\/s, efficiency 100 %$/);
});
