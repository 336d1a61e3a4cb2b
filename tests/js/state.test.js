// What a reader chose: filters, tab, order and open case, and the address that keeps them.
import assert from "node:assert/strict";
import test, { beforeEach } from "node:test";

import { aCase, givePage } from "./page.js";

const NAMES = ["ddp", "fsdp"];
givePage({
  tables: {
    cases: NAMES.flatMap((strategy) => [null, 4, 25].map((bucket_mib) => aCase({ strategy, bucket_mib, rerun: "" }))).concat(
      aCase({ strategy: "single", status: "2 ok, 1 oom" }),
    ),
  },
  filters: [["strategy", "Strategy"], ["bucket_mib", "Bucket, MiB"], ["status", "Status"]],
});
let popped;
globalThis.addEventListener = (name, listener) => { if (name === "popstate") popped = listener; };
const {
  change, closeCase, isSelected, onChange, openCase, ordered, selected, selectedSet, startState, state,
} = await import("../../reports/script/core/state.js");

const filter = (name, ...values) => change("filters", ({ filters }) => filters.set(name, new Set(values)));
const visit = (hash) => { globalThis.location.hash = hash; popped(); };

startState();
beforeEach(() => visit(""));

test("without a filter every case is selected, fastest first", () => {
  assert.deepEqual(selected(), [0, 1, 2, 3, 4, 5, 6]);
  assert.equal(globalThis.location.hash, "");
});

test("values of one filter add up, filters narrow each other", () => {
  filter("bucket_mib", "4", "default");
  assert.deepEqual(selected(), [0, 1, 3, 4, 6]);
  filter("strategy", "fsdp");
  assert.deepEqual(selected(), [3, 4]);
  assert.deepEqual([...selectedSet()], [3, 4]);
  assert.deepEqual([isSelected("fsdp-4"), isSelected("ddp-4"), isSelected("of no case")], [true, false, true]);
});

test("a case with several statuses has each of them", () => {
  filter("status", "oom");
  assert.deepEqual(selected(), [6]);
  filter("status", "ok");
  assert.equal(selected().length, 7);
});

test("the address holds all that was chosen, and gives it back", () => {
  filter("bucket_mib", "default", "25", "4");
  change("tab", (now) => { now.tab = "data"; });
  change("order", ({ order }) => order.set("cases", "-spread"));
  openCase("ddp-4");
  const address = globalThis.location.hash;
  assert.equal(address, "#tab=data&bucket_mib=4&bucket_mib=25&bucket_mib=default&sort.cases=-spread&case=ddp-4");
  visit("");
  assert.deepEqual([state.tab, state.case, state.filters.size, state.order.size], ["", "", 0, 0]);
  visit(address);
  assert.deepEqual([state.tab, state.case, state.order.get("cases")], ["data", "ddp-4", "-spread"]);
  assert.deepEqual([...state.filters.get("bucket_mib")], ["4", "25", "default"]);
  assert.equal(selected().length, 7);
});

test("what an address names and the page does not have is ignored", () => {
  visit("#colour=red&strategy=fsdp");
  assert.deepEqual([...state.filters.keys()], ["strategy"]);
  openCase("no such case");
  assert.equal(state.case, "");
});

test("a tab and an open case are steps to go back from, filters and orders are not", () => {
  const { steps } = globalThis.history;
  steps.length = 0;
  filter("strategy", "ddp");
  change("order", ({ order }) => order.set("cases", "label"));
  assert.equal(steps.length, 0);
  change("tab", (now) => { now.tab = "trust"; });
  openCase("ddp-4");
  assert.equal(steps.length, 2);
  let back = 0;
  globalThis.history.back = () => { back += 1; };
  closeCase();
  assert.equal(back, 1);
  visit("#case=ddp-4");
  globalThis.history.state = null;  // the address named it at first
  closeCase();
  assert.deepEqual([back, state.case], [1, ""]);
});

test("listeners hear what changed: going back to another case is no other address", () => {
  const heard = [];
  onChange((what) => heard.push(what));
  filter("strategy", "ddp");
  openCase("ddp-4");
  visit("#strategy=ddp");
  visit("#strategy=fsdp");
  assert.deepEqual(heard, ["filters", "case", "case", "address"]);
  assert.deepEqual(selected(), [3, 4, 5]);
});

test("values are listed by the numbers in them, PyTorch's default last", () => {
  assert.deepEqual(ordered(["default", "25", "4", "0.5"]), ["0.5", "4", "25", "default"]);
});
