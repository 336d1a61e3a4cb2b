// Orders of rows, and tables as files.
import assert from "node:assert/strict";
import test from "node:test";

import { givePage } from "./page.js";

givePage({});
const { csvBlob, fileName } = await import("../../reports/script/table/csv.js");
const { sortedBy } = await import("../../reports/script/table/table.js");

const orders = (column) => {
  const rows = column.values.map((_, i) => i);
  return [false, true].map((down) => sortedBy(rows, column, down).map((i) => column.values[i]));
};

test("numbers sort both ways, unknown last whichever way", () => {
  assert.deepEqual(orders({ values: [3, null, 0, 10, undefined] }), [[0, 3, 10, null, undefined], [10, 3, 0, null, undefined]]);
});

test("names sort by the numbers in them, whatever their case", () => {
  const sorted = ["ddp 0.25 MiB", "ddp 0.5 MiB", "DDP 4 MiB", "ddp 25 MiB", "fsdp", ""];
  assert.deepEqual(orders({ text: true, values: [...sorted.slice(2, 5), ...sorted.slice(0, 2), ""] })[0], sorted);
});

test("equal rows stay as they came, down too", () => {
  const column = { text: true, values: ["b", "a", "b", "a"] };
  assert.deepEqual([false, true].map((down) => sortedBy([3, 2, 1, 0], column, down)), [[3, 1, 2, 0], [2, 0, 3, 1]]);
});

const written = (columns, rows) => csvBlob(columns, rows).text();

test("a file has the rows that are asked for in that order, quoted where need be", async () => {
  const columns = [["label", ["a", 'b "c", d', "e\nf"]], ["step_s", [0.05, null, -1.5]]];
  // `text` takes the byte order mark away.
  assert.equal(await written(columns, [2, 1, 0]), 'label,step_s\r\n"e\nf",-1.5\r\n"b ""c"", d",\r\na,0.05\r\n');
  const bytes = new Uint8Array(await csvBlob(columns, []).arrayBuffer());
  assert.deepEqual([...bytes.slice(0, 3)], [0xef, 0xbb, 0xbf]);
});

test("a text that a spreadsheet would run is text, and numbers stay numbers", async () => {
  const texts = ["=1+1", "+1", "-2", "@SUM(1)", "\tx", "\rx", "x=1", "＝1+1", "\n=1"];
  const lines = (await written([["error", texts], ["n", texts.map(() => -2)]], [0, 1, 2, 3, 4, 6])).split("\r\n");
  assert.deepEqual(lines, ["error,n", "'=1+1,-2", "'+1,-2", "'-2,-2", "'@SUM(1),-2", "'\tx,-2", "x=1,-2", ""]);
  assert.equal(await written([["error", texts]], [5]), 'error\r\n"\'\rx"\r\n');
  assert.equal(await written([["error", texts]], [7, 8]), 'error\r\n\'＝1+1\r\n"\'\n=1"\r\n');
});

test("a file is called after its page", () => {
  assert.equal(fileName("cases"), "a-session-cases.csv");
  globalThis.document.title = "../ä · parabench";
  assert.equal(fileName("cases"), "parabench-cases.csv");
});
