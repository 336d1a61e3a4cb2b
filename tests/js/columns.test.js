// The cells of tables whose columns Python declares.
import assert from "node:assert/strict";
import test from "node:test";

import { aCase, aLaunch, givePage } from "./page.js";

const column = (name, format, ...beside) => ({ name, head: name, format, beside });
const CASES = [
  aCase({ case_id: "a", step_time_s: 0.05, plus_minus_s: 0.0004, ratio: 1.25, low: 1.2, high: 1.3, bad: true, change: "+25%" }),
  aCase({ case_id: "b", step_time_s: null, ratio: null, how: "oom", bad: false, change: "" }),
];
givePage({
  tables: {
    sizes: [
      { case: 0, label: "ring", bytes: 1024, call_s: 1.23e-5, n_wrong: 0, low_s: 0.001, high_s: 0.002, busbw: 41.23 },
      { case: 1, label: "ring", bytes: 2 ** 21, call_s: null, n_wrong: 1200, low_s: null, high_s: null, busbw: 1234.5 },
    ],
    cases: CASES,
    launches: [
      aLaunch({ block: 0, launch_step_s: 0.05, error: "x", label: "a" }),
      aLaunch({ launch_id: 2, case: null, label: "single", block: -1, launch_step_s: null }),
    ],
  },
  tables_of: {
    cases: {
      initial: "step_time_s", csv: [["step_time_s", "step_time_s"], ["which", "case_id"]],
      columns: [
        column("label", "case"), column("status", "status", "bad"), column("step_time_s", "ms"), column("plus_minus_s", "margin_ms"),
        column("n_ok", "of", "n_launches"), column("ratio", "worded", "change", "bad"), column("low", "times", "low", "high"),
        column("n_launches", "pair", "n_ok"), column("spread", "percent"),
      ],
    },
    sides: { initial: "", csv: [], columns: [column("step_time_s", "ms", "how")] },
    sizes: {
      initial: "", csv: [["size", "bytes"]],
      columns: [column("label", "case"), column("bytes", "size"), column("call_s", "us"), column("n_wrong", "wrong"), column("low_s", "range_ms", "high_s"),
        column("busbw", "digits"),
      ],
    },
    launches: { initial: "", csv: [], columns: [column("label", "case"), column("block", "block"), column("launch_step_s", "ms")] },
  },
});
const { columnsOf, declared } = await import("../../reports/script/table/columns.js");
const { busSizes, cases, launches } = await import("../../reports/script/core/data.js");

// What a cell shows: its texts, and after a colon the class of what is marked.
const shown = (cell) => [cell].flat().filter((part) => part !== null && part !== "").map((part) => (
  typeof part === "string" ? part : `${part.children.join("")}${part.className ? `: ${part.className}` : ""}`));
const cells = (table, of, i) => columnsOf(table, of).map(({ cell }) => shown(cell(i)).join(" "));

test("a cell is made by its column's format, with what stands beside it", () => {
  assert.deepEqual(cells("cases", cases, 0).slice(1), [
    "ok: status bad", "50.0", "0.4", "1 of 1", "+25%: status bad", "1.20 1.20 to 1.30: advice", "1, 1", "1.0%",
  ]);
});

test("sizes of collectives are those of the selected cases, and wrong elements are marked", () => {
  assert.deepEqual(cells("sizes", busSizes, 0), ["ring: name", "1 KiB", "12.3", "0", "1.00 to 2.00", "41.2"]);
  assert.deepEqual(cells("sizes", busSizes, 1), ["ring: name", "2 MiB", "–", "1,200: status bad", "–", "1,235"]);
  assert.deepEqual(declared.sizes().rows(), [0, 1]);
});

test("what is unknown is a dash, and in the place of a side's number stands how its case ended", () => {
  assert.deepEqual(cells("cases", cases, 1).slice(2), ["–", "–", "1 of 1", "–", "–", "1, 1", "1.0%"]);
  assert.deepEqual([0, 1].map((i) => cells("sides", cases, i)[0]), ["50.0", "oom: status bad"]);
});

test("columns of words sort as words, and launches of no case stand among the others", () => {
  assert.deepEqual(columnsOf("cases", cases).filter(({ text }) => text).map(({ name }) => name), ["label", "status"]);
  assert.deepEqual([0, 1].map((i) => cells("launches", launches, i)), [["a: name", "0", "50.0"], ["single: name", "reference", "–"]]);
});

test("a file has the columns and heads that Python names", () => {
  assert.deepEqual(declared.cases().csv(), [["step_time_s", [0.05, null]], ["which", ["a", "b"]]]);
  assert.equal(declared.cases().initial, "step_time_s");
});
