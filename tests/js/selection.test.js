// What the filters leave of a figure that Python made.
import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";

import { aCase, givePage } from "./page.js";

givePage({
  tables: { cases: ["a", "b", "c"].map((case_id) => aCase({ case_id, strategy: case_id })) },
  filters: [["strategy", "Strategy"]],
});
const { caseAt, isDrawn, ofSelected, shows } = await import("../../reports/script/charts/selection.js");
const { change } = await import("../../reports/script/core/state.js");

const filter = (...values) => change("filters", ({ filters }) => {
  filters.clear();
  if (values.length) filters.set("strategy", new Set(values));
});
beforeEach(() => filter());

test("a point is shown while any of its cases is selected, one of all cases without a filter", () => {
  assert.deepEqual([undefined, "", "a", "b|c", "all"].map(shows), [true, true, true, true, true]);
  filter("a");
  assert.deepEqual([undefined, "", "a", "b|c", "a|c", "all"].map(shows), [true, true, true, false, true, false]);
});

test("lists with a value for every point lose those of other cases", () => {
  const figure = {
    data: [
      { x: [1, 2, 3], y: [4, 5, 6], customdata: ["a", "b", "c"], error_x: { array: [7, 8, 9], width: 4 }, marker: { color: "#000", symbol: ["o", "p", "q"] } },
      { x: [0, 1], y: [0, 0], meta: "all" },
      { x: [5, 6], y: [1, 1], name: "limit" },
    ],
    layout: { xaxis: {} },
  };
  assert.deepEqual(ofSelected(figure).traces, figure.data);
  assert.ok(isDrawn(figure));
  filter("a", "c");
  assert.deepEqual(ofSelected(figure).traces, [
    { x: [1, 3], y: [4, 6], customdata: ["a", "c"], error_x: { array: [7, 9], width: 4 }, marker: { color: "#000", symbol: ["o", "q"] } },
    figure.data[2],
  ]);
  filter("of no case");
  assert.ok(!isDrawn(figure) && isDrawn({ data: [figure.data[2]] }));
});

test("a group of traces keeps its name in the legend", () => {
  const trace = (id, showlegend) => ({ x: [1], y: [1], customdata: [id], legendgroup: "g", showlegend });
  filter("b");
  const [kept] = ofSelected({ data: [trace("a", true), trace("b", false)], layout: {} }).traces;
  assert.equal(kept.showlegend, true);
});

test("rows of selected cases move together, and the first are shown", () => {
  const figure = {
    data: [
      { x: [1, 2, 3], y: [0, 1, 2], customdata: ["a", "b", "c"] },
      { x: [4, 5], y: [0.3, 2.3], customdata: ["a", "c"], showlegend: false },
    ],
    layout: {
      meta: { rows: { most: 2, which: "fastest", head: 60, least: 1 } },
      yaxis: { tickvals: [0, 1, 2], ticktext: ["A", "B", "C"], range: [2.5, -0.5] },
    },
  };
  const all = ofSelected(figure);
  assert.deepEqual(all.traces.map(({ x, y }) => [x, y]), [[[1, 2], [0, 1]], [[4], [0.3]]]);
  assert.deepEqual([all.layout.yaxis.ticktext, all.height, all.note], [["A", "B"], 120, "the 2 fastest of 3 configurations"]);
  filter("b", "c");
  const { traces, layout, note } = ofSelected(figure);
  assert.deepEqual(traces.map(({ x, y }) => [x, y.map((each) => each.toFixed(1))]), [[[2, 3], ["0.0", "1.0"]], [[5], ["1.3"]]]);
  assert.deepEqual([layout.yaxis.ticktext, layout.yaxis.range, note], [["B", "C"], [1.5, -0.5], ""]);
  filter();
  figure.layout.meta.rows.order = [2, 0, 1];
  assert.deepEqual(ofSelected(figure).layout.yaxis.ticktext, ["B", "C"]);
});

test("a click on a point of several cases opens the first that is selected", () => {
  const point = (customdata, meta) => ({ customdata, data: { meta } });
  assert.deepEqual([point("b|c"), point("all", "c"), point(undefined, "all")].map(caseAt), ["b", "c", undefined]);
  filter("c");
  assert.equal(caseAt(point("b|c")), "c");
});
