// What the reader chose: tab, filters, open case, orders of tables. The address (after #) holds all of it, so that a
// link shows what one saw.
import { cases, data, hasDetails, rowOf } from "./data.js";

export const filterable = data.filters || [];
const filterNames = new Set(filterable.map(([name]) => name));
const listeners = [];
export const state = { tab: "", case: "", filters: new Map(), order: new Map() };

// A value as a filter and the address name it.
export const named = (value) => (value === null || value === undefined ? "default" : String(value));
// A case's values of a column: its status may be several, "2 ok, 1 oom".
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
  const said = new URLSearchParams(location.hash.slice(1));
  state.tab = said.get("tab") || "";
  state.case = said.get("case") || "";
  state.filters = new Map();
  state.order = new Map();
  for (const [name, value] of said) {
    if (filterNames.has(name)) {
      if (!state.filters.has(name)) state.filters.set(name, new Set());
      state.filters.get(name).add(value);
    } else if (name.startsWith("sort.")) state.order.set(name.slice(5), value);
  }
};
const address = () => {
  const said = new URLSearchParams();
  if (state.tab) said.set("tab", state.tab);
  for (const [name, values] of state.filters) for (const value of ordered(values)) said.append(name, value);
  for (const [table, order] of state.order) said.set(`sort.${table}`, order);
  if (state.case) said.set("case", state.case);
  return `#${said}`;
};

let chosen = null;  // rows that the filters leave, fastest first; worked out once a change
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

// Change what was chosen and tell everybody: `what` names what changed ("tab", "filters", "case", "order"). A step that
// a reader would want to go back from is one in the browser's history.
export const change = (what, apply) => {
  apply(state);
  if (what === "filters") chosen = chosenSet = null;
  if (what === "tab" || what === "case") history.pushState(what === "case" ? { opened: true } : null, "", address());
  else history.replaceState(history.state, "", address());
  for (const listener of listeners) listener(what);
};
export const onChange = (listener) => listeners.push(listener);

// A case that was opened from the page is closed by going back, so that going back again does not open it; one that the
// address named at first, in place.
export const closeCase = () => {
  if (history.state?.opened) return history.back();
  state.case = "";
  history.replaceState(null, "", address());
};
const withoutCase = () => address().replace(/[#&]case=[^&]*/, "");
// An id that no case has, as an old address may, opens nothing; nor does one on a page without details.
export const openCase = (id) => { if (hasDetails && rowOf.has(id) && state.case !== id) change("case", (now) => { now.case = id; }); };

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
