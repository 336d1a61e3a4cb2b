// Lists of caps among bucket sizes: they are no point of a curve.
import assert from "node:assert/strict";
import test from "node:test";

import { aCase, givePage } from "./page.js";

const SIZES = ["1+10", "1+4+25", 4, null, 1, "0.001+", "0.0005+25"];
givePage({
  tables: {
    cases: SIZES.map((bucket_mib, i) => aCase({
      case_id: `ddp-${bucket_mib}`, label: `ddp native ${bucket_mib}, 4 ranks`, strategy: "ddp", algorithm: "native",
      world_size: 4, bucket_mib, step_time_s: 0.1 + i / 100, low_s: 0.1, high_s: 0.2, tokens_per_s: 10 - i,
    })),
    launches: [],
  },
  works: [{ name: "", unit: "tokens", front: [] }], filters: [["bucket_mib", "Bucket, MiB"]],
});
globalThis.addEventListener = () => {};
const { drawers } = await import("../../reports/script/charts/drawers.js");
const { selected } = await import("../../reports/script/core/state.js");
const { bucketPlaces } = await import("../../reports/script/charts/buckets.js");

test("lists stand right of the sizes and before the default, each by itself", () => {
  const [{ traces, layout }] = drawers.buckets(selected());
  assert.deepEqual(layout.xaxis.ticktext, ["1", "4", "0.0005+25", "0.001+", "1+4+25", "1+10", "default"]);
  assert.deepEqual(layout.xaxis.tickvals, [0, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual(traces.map(({ mode, x }) => [mode, x]), [
    ["lines+markers", [0, 2]], ["markers", [6]], ["markers", [5]], ["markers", [7]], ["markers", [4]], ["markers", [3]],
  ]);
  assert.deepEqual(traces.map(({ showlegend }) => showlegend), [true, false, false, false, false, false]);
});

test("without any size there are places still", () => {
  assert.deepEqual([...bucketPlaces(["1+4", null])], [["1+4", 1], [null, 2]]);
});
