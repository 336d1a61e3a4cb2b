// How far launches agree: where marks, bars and shades stand.
import assert from "node:assert/strict";
import test from "node:test";

import { aCase, aLaunch, givePage } from "./page.js";

const FROM = [[-0.01, 0.01], [-0.02, 0.02], [0, null]];  // by case, by block; a launch that does not count
givePage({
  tables: {
    cases: [aCase({ case_id: "a", spread: 0.02 }), aCase({ case_id: "b", spread: 0.04, strategy: "fsdp" }), aCase({ case_id: "c", spread: null })],
    launches: [0, 1].flatMap((block) => [0, 1, 2].map((of) => aLaunch({
      launch_id: 10 * block + of, case: of, block, from_case: FROM[of][block], counts: FROM[of][block] === null ? 0 : 1,
      drift: of === 1 ? 0.15 : 0.01 * block,
    }))),
    blocks: [{ block: 0, median: -0.015 }, { block: 1, median: 0.015 }],
  },
  limits: { drift: { cpu: 0.1 }, aa: { median: 0.025 } },
});
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#000" });
const { spreadPanels, driftPanels, orderPanels } = await import("../../reports/script/charts/trust.js");

test("every launch that counts is in the histogram, and the cases that differ most stand on top", () => {
  const [all, byCase] = spreadPanels([0, 1, 2]);
  const [bins] = all.traces;
  assert.equal(bins.y.reduce((sum, n) => sum + n), 5);
  assert.equal(all.title, "5 launches of 2 cases");
  assert.deepEqual([...bins.x].sort((a, b) => a - b), bins.x);
  assert.ok(bins.x.every((x, i) => Math.abs(x - [-2, -1, 0, 1, 2][i]) < bins.width), String(bins.x));
  assert.deepEqual(all.layout.shapes.map(({ x0, x1 }) => [x0, x1]), [[-2.5, 2.5]]);
  assert.deepEqual(byCase.layout.yaxis.ticktext, ["b", "a"]);
  assert.deepEqual(byCase.traces.map(({ x, y }) => [x, y]), [[[-2, 2], [0, 0]], [[-1, 1], [1, 1]]]);
});

test("a block's median is that of all its launches, whatever is selected", () => {
  assert.deepEqual(orderPanels([0])[0].traces.at(-1).y, [-1.5, -1.5, null, 1.5, 1.5, null]);
});

test("a drift beyond the limit of its device is counted", () => {
  const [panel] = driftPanels([0, 1, 2]);
  assert.equal(panel.title, "5 launches · 2 beyond the dashed lines");
  assert.deepEqual(panel.layout.shapes.map(({ y0 }) => y0), [-10, 10]);
  assert.deepEqual(panel.traces.flatMap(({ x }) => x).sort(), [1, 2, 3, 4, 5]);
});

test("launches stand in the order in which they ran, each block with its median", () => {
  const [panel] = orderPanels([0, 1]);
  const medians = panel.traces.at(-1);
  assert.deepEqual([medians.name, medians.x, medians.y], ["median of a block", [1, 2, null, 3, 4, null], [-1.5, -1.5, null, 1.5, 1.5, null]]);
});

test("what launches cannot tell is no figure", () => {
  assert.deepEqual([spreadPanels([]), driftPanels([]), orderPanels([])], [[], [], []]);
});
