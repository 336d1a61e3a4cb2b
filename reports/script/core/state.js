// The state that the reader selects: tab, filters, open case, orders of tables. The address after # contains all of it,
// so that a link shows the same view.
import { cases, data, rowOf } from "./data.js";

export const filterable = data.filters || [];
const filterNames = new Set(filterable.map(([name]) => name));
const listeners = [];
export const state = { tab: "", case: "", filters: new Map(), order: new Map() };

// The text of a value in filters and in the address.
export const named = (value) => (value === null || value === undefined ? "default" : String(value));
// The values of a case in a column. A status can have several: "2 ok, 1 oom".
export const valuesOf = (column, row) => {
  const value = cases[column][row];
  if (column !== "status") return [named(value)];
  return value.includes(", ") ? value.split(", ").map((part) => part.replace(/^\d+ /, "")) : [value];
};
export const ordered = (values) => [...values].sort((a, b) => {
  if ((a === "default") !== (b === "default")) return a === "default" ? 1 : -1;
  return a.localeCompare(b, "en", { numeric: true });
});

const readAddress = () => {
  const parameters = new URLSearchParams(location.hash.slice(1));
  state.tab = parameters.get("tab") || "";
  state.case = parameters.get("case") || "";
  state.filters = new Map();
  state.order = new Map();
  for (const [name, value] of parameters) {
    if (filterNames.has(name)) {
      if (!state.filters.has(name)) state.filters.set(name, new Set());
      state.filters.get(name).add(value);
    } else if (name.startsWith("sort.")) state.order.set(name.slice(5), value);
  }
};
const address = () => {
  const parameters = new URLSearchParams();
  if (state.tab) parameters.set("tab", state.tab);
  for (const [name, values] of state.filters) for (const value of ordered(values)) parameters.append(name, value);
  for (const [table, order] of state.order) parameters.set(`sort.${table}`, order);
  if (state.case) parameters.set("case", state.case);
  return `#${parameters}`;
};

let chosen = null;  // the selected rows, fastest first, computed once per change
export const selected = () => {
  if (chosen === null) {
    const tests = [...state.filters];
    chosen = [];
    for (let row = 0; row < cases.n; row += 1) {
      if (tests.every(([name, values]) => valuesOf(name, row).some((value) => values.has(value)))) chosen.push(row);
    }
  }
  return chosen;
};
export const isSelected = (caseId) => {
  const row = rowOf.get(caseId);
  return row === undefined || !state.filters.size || selectedSet().has(row);
};
let chosenSet = null;
export const selectedSet = () => (chosenSet ??= new Set(selected()));

// Change the state and call all listeners with `what`, the changed part: "tab", "filters", "case" or "order". A new tab or
// case is an entry in the browser's history, so that the reader can go back.
export const change = (what, apply) => {
  apply(state);
  if (what === "filters") chosen = chosenSet = null;
  if (what === "tab" || what === "case") history.pushState(what === "case" ? { opened: true } : null, "", address());
  else history.replaceState(history.state, "", address());
  for (const listener of listeners) listener(what);
};
export const onChange = (listener) => listeners.push(listener);

// Close the details of a case. If a click opened them, go back in the history, so that the next step back does not open
// them again. If the address opened them, change only the address.
export const closeCase = () => {
  if (history.state?.opened) return history.back();
  state.case = "";
  history.replaceState(null, "", address());
};
const withoutCase = () => address().replace(/[#&]case=[^&]*/, "");
// Open the details of a case. An unknown id, for example from an old address, is ignored.
export const openCase = (id) => { if (rowOf.has(id) && state.case !== id) change("case", (now) => { now.case = id; }); };

export const startState = () => {
  readAddress();
  addEventListener("popstate", () => {
    const before = withoutCase();
    readAddress();
    const what = withoutCase() === before ? "case" : "address";
    if (what === "address") chosen = chosenSet = null;
    for (const listener of listeners) listener(what);
  });
};
