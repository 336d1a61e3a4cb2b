// The cells of tables that Python declares.
import assert from "node:assert/strict";
import test from "node:test";

import { aCase, aLaunch, givePage } from "./page.js";

const column = (name, format, ...cells) => ({ name, head: name, format, cells });
givePage({
  tables: {
    cases: [aCase({ case_id: "a", step_time_s: 0.05, ranking: "fastest" }), aCase({ case_id: "b", step_time_s: null })],
    launches: [aLaunch({ label: "a" }), aLaunch({ launch_id: 2, case: null, label: "single" })],
  },
  tables_of: {
    cases: {
      initial: "step_time_s", csv: [["step_time_s", "step_time_s"], ["which", "case_id"]],
      columns: [
        column("label", "case"), column("status", "text", "ok", { text: "oom", bad: true }),
        column("step_time_s", "", "50.0", "–"), column("ratio", "", { text: "1.25", sub: "1.20 to 1.30" }, "–"),
        column("error", "error", "", "first line\nsecond"),
      ],
    },
    launches: { initial: "", csv: [], columns: [column("label", "case")] },
  },
});
const { declared } = await import("../../reports/script/table/columns.js");

// What a cell shows: its texts, and after a colon the class of what is marked.
const shown = (cell) => [cell].flat().filter((part) => part !== null && part !== "").map((part) => (
  typeof part === "string" ? part : `${part.children.join("")}${part.className ? `: ${part.className}` : ""}`));
const cells = (table, i) => declared[table]().columns.map(({ cell }) => shown(cell(i)).join(" "));

test("a cell is text, with a second line or a mark", () => {
  assert.deepEqual(cells("cases", 0), ["a: name   fastest: tag", "ok", "50.0", "1.25 1.20 to 1.30: advice", ""]);
  assert.deepEqual(cells("cases", 1), ["b: name", "oom: status bad", "–", "–", "first line: error"]);
});

test("columns of words sort as words, and launches of no case are among the others", () => {
  assert.deepEqual(declared.cases().columns.filter(({ text }) => text).map(({ name }) => name), ["label", "status", "error"]);
  assert.deepEqual([0, 1].map((i) => cells("launches", i)), [["a: name"], ["single: name"]]);
});

test("a file has the columns and heads that Python names", () => {
  assert.deepEqual(declared.cases().csv(), [["step_time_s", [0.05, null]], ["which", ["a", "b"]]]);
  assert.equal(declared.cases().initial, "step_time_s");
});
