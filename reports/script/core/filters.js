// The filters: they select cases for every figure and table.
import { cases } from "./data.js";
import { element } from "./element.js";
import { count, fixed } from "./format.js";
import { change, filterable, onChange, ordered, selected, state, valuesOf } from "./state.js";

const choose = (name, value, on) => change("filters", ({ filters }) => {
  const values = new Set(filters.get(name));
  if (on) values.add(value);
  else values.delete(value);
  if (values.size) filters.set(name, values);
  else filters.delete(name);
});

const MOST_UNSOUGHT = 12;  // with more values, a filter gets a search field
const filterOf = ([name, title]) => {
  const counts = new Map();
  for (let row = 0; row < cases.n; row += 1) {
    for (const value of valuesOf(name, row)) counts.set(value, (counts.get(value) || 0) + 1);
  }
  const boxes = ordered(counts.keys()).map((value) => element(
    "label", {},
    element("input", { type: "checkbox", value, onchange: (event) => choose(name, value, event.target.checked) }),
    element("span", {}, value), element("small", {}, fixed(counts.get(value))),
  ));
  const find = ({ target }) => {
    const sought = target.value.trim().toLowerCase();
    for (const box of boxes) box.hidden = !box.querySelector("span").textContent.toLowerCase().includes(sought);
  };
  const search = boxes.length > MOST_UNSOUGHT
    ? [element("input", { type: "search", placeholder: "Find", "aria-label": `Find in ${title}`, oninput: find })] : [];
  return element(
    "details", { class: "filter", data: { filter: name } },
    element("summary", {}, `${title}: `, element("b", {})),
    element("fieldset", {}, element("legend", { class: "unseen" }, title), ...search, ...boxes),
  );
};

const showFilters = (bar) => {
  for (const filter of bar.querySelectorAll(".filter")) {
    const values = state.filters.get(filter.dataset.filter);
    filter.classList.toggle("set", Boolean(values));
    filter.querySelector("summary b").textContent = values ? ordered(values).join(", ") : "all";
    for (const box of filter.querySelectorAll("[type=checkbox]")) box.checked = Boolean(values?.has(box.value));
  }
  const some = selected().length;
  bar.querySelector("output").textContent = some === cases.n
    ? `all ${count(cases.n, "configuration")}` : `${fixed(some)} of ${count(cases.n, "configuration")}`;
  bar.querySelector("button").hidden = !state.filters.size;
};

const buildFilters = (bar) => {
  bar.append(
    ...filterable.map(filterOf),
    element("output", { role: "status" }),
    element("button", { type: "button", onclick: () => change("filters", (now) => now.filters.clear()) }, "Show all"),
  );
  bar.hidden = false;
  showFilters(bar);
  onChange((what) => { if (what === "filters" || what === "address") showFilters(bar); });
  // Only one list is open. A click elsewhere, Escape, or moving the focus closes it.
  const close = (but) => bar.querySelectorAll("details[open]").forEach((d) => { if (d !== but) d.open = false; });
  document.addEventListener("click", (event) => close(event.target.closest("#filters details")));
  bar.addEventListener("focusout", ({ target, relatedTarget }) => {
    const left = target.closest("details[open]");
    if (left && relatedTarget && !left.contains(relatedTarget)) left.open = false;
  });
  bar.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const open = bar.querySelector("details[open]");
    if (open) { open.open = false; open.querySelector("summary").focus(); }
  });
};

// Sentences, including the verdict, are about all cases. If only some are selected, a note says this on screen and paper.
const sayOfAll = () => {
  for (const place of document.querySelectorAll("[data-of-all]")) {
    place.hidden = selected().length === cases.n;
    place.textContent = place.hidden ? "" : `For all ${count(cases.n, "configuration")}, regardless of filters: `;
  }
};

export const startFilters = () => {
  if (!filterable.length) return;
  const bar = document.getElementById("filters");
  if (bar && cases.n > 1) buildFilters(bar);
  sayOfAll();
  onChange((what) => { if (what === "filters" || what === "address") sayOfAll(); });
};
