// Several sides beside each other: ratios on their axis, and the places of bars.
import assert from "node:assert/strict";
import test from "node:test";

import { aCase, givePage } from "./page.js";

const side = (name, color) => ({ name, color, symbol: "square" });
const ratio = (case_id, value, low = null, high = null, change = "same") => ({
  ...aCase({ case_id, label: case_id }), "ratio.1": value, "ratio_low.1": low, "ratio_high.1": high, "change.1": change,
});
givePage({
  tables: {
    cases: [
      ratio("near", 1.01, 0.99, 1.03), ratio("slower", 1.4, 1.3, 1.5, "slower"), ratio("faster", 0.8, 0.7, 0.9, "faster"), ratio("none", null),
    ],
  },
  sides: [side("one", "#001"), side("two", "#002")],
  works: [{ name: "", unit: "tokens", means: { ratio: [{ ratio: 1.04, low: 1.01, high: 1.07, cases: 3 }] } }],
});
const { roundRatios, sidesRatiosPanels } = await import("../../reports/script/charts/sides.js");

test("ratios stand in their order below each other, the mean last, filled where the sides differ", () => {
  const [panel] = sidesRatiosPanels([0, 1, 2, 3]);
  const [{ y, x, ids, marker, error_x: bars }] = panel.traces;
  assert.deepEqual(ids, ["faster", "near", "slower", ""]);
  assert.deepEqual([x, y], [[0.8, 1.01, 1.4, 1.04], [0, 1, 2, 3]]);
  assert.deepEqual(marker.symbol, ["square", "square-open", "square", "square"]);
  assert.deepEqual(bars.array.map((n) => n.toFixed(2)), ["0.10", "0.02", "0.10", "0.03"]);
  assert.equal(panel.layout.yaxis.ticktext.at(-1), "geometric mean of 3 cases");
});

test("ticks of ratios are round", () => {
  assert.deepEqual(roundRatios(0.09, 12), [0.1, 0.2, 0.5, 1, 2, 5, 10]);
  assert.deepEqual(roundRatios(0.8, 1.21), [0.8, 0.9, 1, 1.1, 1.2]);
});
