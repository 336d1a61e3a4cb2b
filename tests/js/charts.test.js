// What figures of cases are drawn of: which cases, in which panels, at which places.
import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";

import { aCase, givePage } from "./page.js";

const FASTEST = 0.020;
const case_ = (strategy, algorithm, world_size, bucket_mib, step_time_s, more = {}) => aCase({
  case_id: [strategy, algorithm, world_size, bucket_mib].join("-"), label: `${strategy} ${algorithm}, ${world_size} ranks`, strategy,
  algorithm, world_size, bucket_mib, step_time_s, low_s: step_time_s * 0.9, high_s: step_time_s * 1.2, tokens_per_s: 1 / step_time_s,
  slower: step_time_s === null ? null : step_time_s / FASTEST - 1, mean_peak_bytes: 2 ** 20 * (10 - world_size), ...more,
});
// Fastest first, as Python embeds them.
const CASES = [
  case_("ddp", "ring", 4, 25, 0.020, { ranking: "fastest" }), case_("ddp", "ring", 4, 4, 0.021, { ranking: "tied" }),
  case_("ddp", "native", 4, 25, 0.022), case_("ddp", "native", 4, null, 0.023), case_("ddp", "native", 4, 4, 0.025),
  case_("ddp", "tree", 4, 25, 0.030), case_("ddp", "native", 2, 25, 0.040), case_("fsdp", "native", 4, null, 0.050),
  case_("fsdp", "native", 2, null, 0.060, { mark: "baseline, not ranked", ranked: false }), case_("single", "native", 1, null, 0.080), case_("ddp", "ring", 8, 25, null),
];
const row = (id) => CASES.findIndex(({ case_id }) => case_id === id);
const POINTS = [
  ["single-native-1-", "ddp-native-2-25", "ddp-native-4-25"], ["single-native-1-", "ddp-ring-4-25"],
  ["single-native-1-", "fsdp-native-2-", "fsdp-native-4-"],
];
givePage({
  tables: { cases: CASES, launches: [] }, works: [{ name: "", unit: "tokens", front: [0, 9] }],
  filters: [["strategy", "Strategy"], ["world_size", "Ranks"]],
  curves: {
    groups: [{ title: "Strong scaling", unit: "tokens" }],
    curves: { n: 3, group: [0, 0, 0], base: POINTS.map(([id]) => row(id)), n_points: POINTS.map((ids) => ids.length) },
    points: { n: 8, case: POINTS.flat().map(row), efficiency: [1, 0.9, 0.8, 1, 0.95, 1, 0.7, 0.6] },
  },
});
globalThis.addEventListener = () => {};
const { drawers } = await import("../../reports/script/charts/drawers.js");
const { data } = await import("../../reports/script/core/data.js");
const { change, selected } = await import("../../reports/script/core/state.js");

const filter = (name, ...values) => change("filters", ({ filters }) => filters.set(name, new Set(values)));
const drawn = (name) => drawers[name](selected());
const titles = (panels) => panels.map(({ title }) => title);
const trace = ({ traces }, name) => traces.find((each) => each.name === name);

beforeEach(() => change("filters", ({ filters }) => filters.clear()));

test("a curve of bucket sizes has the default apart, and the set is filled and shaded", () => {
  const panels = drawn("buckets");
  assert.deepEqual(titles(panels), ["ddp, 4 ranks"]);
  const [{ traces, layout }] = panels;
  assert.deepEqual(layout.xaxis.ticktext, ["4", "25", "default"]);
  assert.deepEqual(traces.map(({ name, mode, y }) => [name, mode, y]), [
    ["native", "lines+markers", [25, 22]], ["native", "markers", [23]], ["ring", "lines+markers", [21, 20]], ["tree", "markers", [30]],
  ]);
  assert.ok(traces[1].x[0] > Math.max(...traces[0].x));
  assert.deepEqual(traces.map(({ marker }) => marker.symbol), [
    ["circle-open", "circle-open"], ["circle-open"], ["circle", "circle"], ["circle-open"],
  ]);
  assert.deepEqual(layout.shapes.map(({ x0, x1 }) => [x0, x1]), [[2 - 0.3, Math.log2(25) + 0.3]]);
  const [{ array, arrayminus }] = traces.map(({ error_y }) => error_y);
  assert.deepEqual([...array, ...arrayminus].map((ms) => ms.toFixed(2)), ["5.00", "4.40", "2.50", "2.20"]);
});

test("a cell has its case and its shade: the fastest is the deepest, a quarter slower the lightest", () => {
  const [panel, ...others] = drawn("heat");
  assert.equal(others.length, 0);
  assert.equal(panel.title, "ddp, 4 ranks (ms)");
  const [{ ids, text, x, base, marker }] = panel.traces;
  const at = ids.indexOf("ddp-ring-4-25");
  assert.deepEqual([text[at], x[at], Math.round(base[at] + 0.47), marker.color[at]], ["20.0", 1, 1, "rgb(79,168,221)"]);
  assert.equal(marker.color[ids.indexOf("ddp-tree-4-25")], "rgb(244,248,251)");
  assert.deepEqual(panel.layout.shapes.map(({ x0, y0 }) => [Math.round(x0 + 0.44), Math.round(y0 + 0.42)]).sort(), [[0, 1], [1, 1]]);
  filter("strategy", "fsdp");
  assert.deepEqual(drawn("heat"), []);
});

test("an algorithm is told by its ratio to native, also where native is not selected", () => {
  const [panel] = drawn("algorithms");
  assert.deepEqual(panel.layout.yaxis.ticktext, ["4 ranks, 4 MiB", "4 ranks, 25 MiB"]);
  assert.deepEqual(trace(panel, "native").x, [1, 1]);
  assert.deepEqual(trace(panel, "ring").x.map((ratio) => ratio.toFixed(3)), ["0.840", "0.909"]);
  const alone = drawers.algorithms([row("ddp-ring-4-25")])[0];
  assert.equal(trace(alone, "native"), undefined);
  assert.deepEqual(trace(alone, "ring").x.map((ratio) => ratio.toFixed(9)), [(0.020 / 0.022).toFixed(9)]);
});

test("of a strategy the curve with the most points is drawn, and of as many the fastest", () => {
  const [throughput, efficiency] = drawn("scaling");
  assert.deepEqual(titles([throughput, efficiency]), ["Strong scaling: throughput", "Strong scaling: efficiency"]);
  assert.deepEqual(efficiency.traces.map(({ name }) => name), ["ideal", "ddp 25 MiB", "fsdp", "single"]);  // all are native
  assert.deepEqual(trace(efficiency, "ddp 25 MiB").y, [100, 90, 80]);
  assert.deepEqual(trace(throughput, "ideal").y.map(Math.round), [13, 25, 50]);
});

test("what efficiency refers to stays, unless its world size was taken away", () => {
  filter("strategy", "ddp");
  const [, efficiency] = drawn("scaling");
  assert.deepEqual(efficiency.traces.map(({ name }) => name), ["ideal", "ddp native 25 MiB", "ddp ring 25 MiB"]);
  assert.deepEqual(efficiency.traces[1].x, [1, 2, 4]);
  filter("world_size", "2", "4");
  assert.deepEqual(drawn("scaling")[1].traces[1].x, [2, 4]);
  filter("world_size", "4");
  assert.deepEqual(drawn("scaling"), []);
});

test("a line crosses no world size that was not measured", () => {
  const native4 = CASES.findIndex(({ case_id }) => case_id === "ddp-native-4-25");
  const [, efficiency] = drawers.scaling(selected().filter((each) => each !== native4 && CASES[each].strategy !== "fsdp"));
  assert.deepEqual(efficiency.traces.map(({ name, x, y }) => [name, x, y]).slice(1, 3), [
    ["ddp native 25 MiB", [1, 2], [100, 90]], ["ddp ring 25 MiB", [1, 2, 4], [100, null, 95]],
  ]);
});

test("the fastest are on top, each with its launches, and a case without a step time is not drawn", () => {
  const [panel] = drawn("ranking");
  assert.deepEqual(panel.layout.yaxis.ticktext[0], "ddp ring, 4 ranks");
  assert.deepEqual(panel.layout.yaxis.range, [9.5, -0.5]);
  assert.deepEqual(panel.traces.flatMap(({ ids }) => ids).length, 10);
});

test("where intervals are known cases stand as far behind the best, and who left the race says when", () => {
  const slower = { 0: [0, null, null], 1: [0.05, 0.01, 0.09], 2: [0.02, -0.01, 0.05] };
  for (const [place, [at, low, high]] of Object.entries(slower)) {
    Object.assign(CASES[place], { slower: at, slower_low: low, slower_high: high });
    for (const name of ["slower", "slower_low", "slower_high"]) data.cases[name][place] = CASES[place][name];
  }
  data.cases.left_after_block[1] = 3;
  data.cases.left_at_least[1] = 0.011;
  data.works[0].compared = true;
  const [{ traces: [{ ids, x, error_x, text }], layout }] = drawers.ranking([0, 1, 2]);
  assert.deepEqual(ids, [0, 2, 1].map((place) => CASES[place].case_id));
  assert.deepEqual(x, [0, 2, 5]);
  assert.deepEqual([error_x.arrayminus, error_x.array].map((ends) => ends.map(Math.round)), [[0, 3, 4], [0, 3, 4]]);
  assert.match(layout.yaxis.ticktext[2], / \(left after block 3: ≥ 1\.1 %\)$/);
  assert.match(text[1], /2\.0 % slower than the best \(95 %: −1\.0 % to 5\.0 %\)/);
  data.works[0].compared = false;
});

test("the front is what was decided among all cases, whatever is selected", () => {
  const [panel] = drawn("front");
  assert.deepEqual([trace(panel, "beaten by none").x, trace(panel, "beaten by none").y], [[20, 80], [6, 9]]);
  assert.deepEqual(trace(panel, "single").marker.symbol, ["circle"]);
  assert.deepEqual(trace(panel, "ddp").marker.symbol, ["circle", ...Array(6).fill("circle-open")]);
  filter("strategy", "fsdp");
  const [some] = drawn("front");
  assert.deepEqual(some.traces.map(({ name, x }) => [name, x]), [["beaten by none", [20, 80]], ["fsdp", [50]]]);
});

test("what is not ranked says so beside its name, and of many cases the fastest are drawn", () => {
  const [panel] = drawers.ranking([row("fsdp-native-2-")]);
  assert.deepEqual([panel.title, panel.layout.yaxis.ticktext], ["", ["fsdp native, 2 ranks (baseline, not ranked)"]]);
  assert.equal(drawers.ranking([...Array(17).keys()].map(() => 0))[0].title, "the 16 fastest of 17 cases");
});

test("a figure names every drawer, and each answers to no case at all with no panel", () => {
  const needed = ["ranking", "front", "buckets", "heat", "algorithms", "scaling"];
  for (const name of needed) assert.deepEqual(drawers[name]([]), [], name);
  assert.ok(Object.values(drawers).every((draw) => typeof draw === "function"));
});
