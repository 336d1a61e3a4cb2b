// Launches are grouped by their cases.
import assert from "node:assert/strict";
import test from "node:test";

import { aCase, aLaunch, givePage } from "./page.js";

givePage({
  tables: {
    cases: [aCase({ case_id: "a", label: "A" }), aCase({ case_id: "b", label: "B" })],
    launches: [
      aLaunch({ launch_id: 1, case: null, block: -1, counts: 0 }), aLaunch({ launch_id: 2, case: 0, block: 1, counts: 0 }),
      aLaunch({ launch_id: 5, case: 1 }), aLaunch({ launch_id: 9, case: 0 }),
    ],
  },
});
const { blockName, counts, distinct, groupBy, launchesOf, rowOf } = await import("../../reports/script/core/data.js");

test("launches are found by their case", () => {
  assert.equal(rowOf.get("b"), 1);
  assert.deepEqual(launchesOf, [[1, 3], [2]]);
  assert.deepEqual([0, 1, 2, 3].map(counts), [false, false, true, true]);
  assert.deepEqual([-1, 0, 12].map(blockName), ["reference", "0", "12"]);
});

test("rows are grouped in the order in which their keys first appear", () => {
  assert.deepEqual([...groupBy([5, 2, 7, 4], (n) => n % 2)], [[1, [5, 7]], [0, [2, 4]]]);
  assert.deepEqual(distinct([2, 1, 2]), [2, 1]);
});
