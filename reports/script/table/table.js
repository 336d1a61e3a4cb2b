// Tables with many rows. A click on a head sorts them, 100 rows are shown at a time, and the address keeps the order.
//
// A table is {columns, rows, initial, csv, good}:
// - columns: [{name, head, text, values, cell}]. Rows are sorted by `values`, and `cell(i)` is shown.
// - rows(): the indices of the selected rows in their initial order.
// - initial: the column of the initial order, with "-" in front if it is descending; "" if no column gives this order.
// - csv(): the columns of its file.
// - good(i): whether a row is highlighted.
import { element } from "../core/element.js";
import { count, fixed } from "../core/format.js";
import { change, onChange, state } from "../core/state.js";
import { csvBlob, download, fileName } from "./csv.js";

const ROWS_SHOWN = 100;
// A key that sorts numbers in text by size: "4 MiB" before "25 MiB", "0.25" before "0.5". Intl.Collator only does the
// first, and takes ten times as long.
const naturally = (text) => text.toLowerCase().replace(
  /\d+(\.\d+)?/g, (number) => number.padStart(number.length + 12 - number.split(".")[0].length, "0"),
);
const sortKeys = new WeakMap();

// The sort keys of a column as numbers, NaN if unknown. Distinct texts are compared, not the text of each row.
const keysOf = (column) => {
  if (!sortKeys.has(column)) {
    const there = (value) => value !== null && value !== undefined && value !== "";
    let number = (value) => (there(value) ? Number(value) : NaN);
    if (column.text) {
      const texts = [...new Set(column.values.filter(there))].map((text) => [naturally(text), text]);
      texts.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
      const places = new Map(texts.map(([, text], i) => [text, i]));
      number = (value) => places.get(value) ?? NaN;
    }
    sortKeys.set(column, Float64Array.from(column.values, number));
  }
  return sortKeys.get(column);
};

// The rows sorted by a column. Equal rows keep their order, and unknown values are last in both directions.
export const sortedBy = (rows, column, down) => {
  const keys = keysOf(column);
  const sorted = rows.filter((i) => !Number.isNaN(keys[i]));
  sorted.sort(down ? (a, b) => keys[b] - keys[a] : (a, b) => keys[a] - keys[b]);
  return sorted.length === rows.length ? sorted : sorted.concat(rows.filter((i) => Number.isNaN(keys[i])));
};

const tables = {};
const orderOf = (name) => {
  const order = state.order.get(name) ?? tables[name].initial;
  const column = tables[name].columns.find((each) => each.name === order.replace(/^-/, ""));
  return column ? [column, order.startsWith("-")] : [null, false];  // an address can contain any text
};
export const rowsInOrder = (name) => {
  const [column, down] = orderOf(name);
  const rows = tables[name].rows();
  return column && state.order.has(name) ? sortedBy(rows, column, down) : rows;
};

// Ascending, then descending, then the initial order.
const sortBy = (name, column) => change("order", ({ order }) => {
  const [now, down] = orderOf(name);
  const next = now?.name !== column ? column : down ? tables[name].initial : `-${column}`;
  if (next === tables[name].initial) order.delete(name);
  else order.set(name, next);
});

const showTable = (container, first = 0) => {
  const name = container.dataset.table;
  const { columns, good } = tables[name];
  const rows = rowsInOrder(name);
  const [by, down] = orderOf(name);
  for (const head of container.querySelectorAll("th")) {
    if (by?.name !== head.dataset.column) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", down ? "descending" : "ascending");
  }
  const shown = rows.slice(first, first + ROWS_SHOWN);
  container.dataset.first = String(first);
  container.querySelector("tbody").replaceChildren(...shown.map((i) => element(
    "tr", good?.(i) ? { class: "good" } : {},
    ...columns.map((column) => element("td", column.text ? {} : { class: "n" }, ...[column.cell(i)].flat())),
  )));
  const range = `rows ${fixed(first + 1)} to ${fixed(first + shown.length)} of ${fixed(rows.length)}`;
  container.querySelector("output").textContent = rows.length > ROWS_SHOWN ? range : count(rows.length, "row");
  const last = Math.max(0, Math.ceil(rows.length / ROWS_SHOWN) - 1) * ROWS_SHOWN;
  const to = { first: 0, previous: first - ROWS_SHOWN, next: first + ROWS_SHOWN, last };
  for (const button of container.querySelectorAll("[data-to]")) {
    const at = to[button.dataset.to];
    button.hidden = last === 0;
    // `disabled` would remove the focus from the button at the last page.
    button.setAttribute("aria-disabled", String(at < 0 || at > last || at === first));
    button.dataset.at = String(at);
  }
  container.querySelector(".scroll").hidden = !rows.length;
  container.querySelector(".empty").hidden = rows.length > 0;
};

const buildTable = (container) => {
  const name = container.dataset.table;
  const { columns } = tables[name];
  const turnTo = (event) => {
    const button = event.currentTarget;
    if (button.getAttribute("aria-disabled") === "true") return;
    showTable(container, Number(button.dataset.at));
    container.querySelector(".scroll").scrollTop = 0;
  };
  const save = () => download(csvBlob(tables[name].csv(), rowsInOrder(name)), fileName(name));
  const button = (text, more) => element("button", { type: "button", ...more }, text);
  const head = (column) => element(
    "th", { scope: "col", class: column.text ? "t" : "n", data: { column: column.name } },
    button(column.head, { onclick: () => sortBy(name, column.name) }),
  );
  container.append(
    element(
      "div", { class: "pager", role: "group", "aria-label": `Rows of the table: ${container.dataset.title}` },
      element("output", { role: "status" }),
      ...["First", "Previous", "Next", "Last"].map((to) => button(to, { data: { to: to.toLowerCase() }, onclick: turnTo })),
      button("Download CSV", { class: "save", onclick: save }),
    ),
    element(
      "div", { class: "scroll tall", role: "region", "aria-label": container.dataset.title, tabindex: "0" },
      element("table", {}, element("thead", {}, element("tr", {}, ...columns.map(head))), element("tbody")),
    ),
    element("p", { class: "empty" }, "No configuration matches the filters. “Show all” clears them."),
  );
};

// A table is filled when its tab is shown, because filtering and sorting of 50,000 rows take time.
const stale = new Set();
export const fillTables = (all = false) => {
  for (const container of stale) {
    if (!all && container.closest("[hidden]")) continue;
    stale.delete(container);
    showTable(container);
  }
};
export const buildTables = (declared) => {
  const containers = [...document.querySelectorAll("[data-table]")];
  for (const container of containers) {
    tables[container.dataset.table] = declared[container.dataset.table]();
    buildTable(container);
    stale.add(container);
  }
  fillTables();
  onChange((what) => {
    if (what === "case") return;
    if (what !== "tab") containers.forEach((one) => stale.add(one));
    fillTables();
  });
};
