// The look that figures of the page and of Python share, and names beside bars.
import assert from "node:assert/strict";
import test from "node:test";

import { givePage } from "./page.js";

givePage({});
const COLOURS = { "--ink": "#111", "--line": "#ccc", "--wash": "#eee" };
globalThis.getComputedStyle = () => ({ fontFamily: "serif", getPropertyValue: (name) => ` ${COLOURS[name]} ` });
const { legendLines, nameLines, themed, withShortNames } = await import("../../reports/script/charts/layout.js");

test("a layout has the page's colours, and what it says of itself stays", () => {
  const layout = themed({
    legend: { traceorder: "normal" }, xaxis: { title: { text: "step time (ms)" }, range: [0, 1] },
    yaxis: { zeroline: true }, yaxis2: { visible: false },
  });
  assert.deepEqual(layout.font, { size: 13, family: "serif", color: "#111" });
  assert.deepEqual([layout.legend.orientation, layout.legend.traceorder], ["h", "normal"]);
  const { xaxis, yaxis, yaxis2 } = layout;
  assert.deepEqual([xaxis.range, xaxis.title.text, xaxis.gridcolor], [[0, 1], "step time (ms)", "#ccc"]);
  assert.deepEqual([xaxis, yaxis, yaxis2].map(({ zeroline }) => zeroline), [false, true, false]);
  assert.ok([xaxis, yaxis, yaxis2].every(({ fixedrange }) => fixedrange));  // a drag scrolls the page
  assert.deepEqual([xaxis.automargin, yaxis.automargin], ["height", "width"]);
});

test("a name is cut into lines that a phone has room for, and its ranks come last", () => {
  const name = "ddp two_level(ring,tree) 25 MiB fp32 accumulated 4 times, 16 ranks, 4 a node";
  assert.deepEqual(nameLines("ddp ring, 4 ranks"), ["ddp ring, 4 ranks"]);
  assert.deepEqual(nameLines(name), ["ddp two_level(ring,tree) 25 MiB fp32", "accumulated 4 times,", "16 ranks, 4 a node"]);
  globalThis.innerWidth = 360;
  const lines = nameLines(name);
  assert.ok(lines.every((line) => line.length <= 26), lines.join("|"));
  assert.deepEqual(lines.slice(-1), ["16 ranks, 4 a node"]);
  const { yaxis, xaxis } = themed({ yaxis: { ticktext: [name] }, xaxis: { ticktext: [name] } });
  assert.deepEqual(yaxis.ticktext, [lines.join("<br>")]);
  assert.deepEqual(xaxis.ticktext, [name]);
});

test("on a phone a legend of many names has two columns of short names", () => {
  globalThis.innerWidth = 360;
  const few = Array.from({ length: 6 }, (_, i) => ({ name: `two_level(ring,tree) 25 MiB ${i}` }));
  const hidden = { name: "hidden", showlegend: false };
  assert.deepEqual([legendLines([...few, hidden]), themed({}, [...few, hidden]).legend.entrywidth], [6, undefined]);
  const many = [...few, { name: "ring" }];
  assert.deepEqual([legendLines(many), themed({}, many).legend.entrywidth], [4, 0.48]);
  assert.ok(withShortNames(many).every(({ name }) => name.length <= 22));
  globalThis.innerWidth = 1100;
  assert.deepEqual([legendLines(many), themed({}, many).legend.entrywidth, withShortNames(many)], [7, undefined, many]);
});
