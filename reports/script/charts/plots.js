// Drawing: figures from the page's data (drawers) and ready-made ones (figures), in the page's colours, only those of the
// tab that is seen, one at a time so that the page stays quick to the touch.
//
// A drawer is a function of the selected rows: it gives panels {key, title, traces, layout, height, wide}. A point's `ids`
// or `customdata`, or its trace's `meta`, is the id of the case that a click opens.
import { cases, figures, rowOf } from "../core/data.js";
import { element } from "../core/element.js";
import { count } from "../core/format.js";
import { isSelected, onChange, openCase, selected, selectedSet, state } from "../core/state.js";
import { drawers } from "./drawers.js";
import { themed } from "./layout.js";

const MOST_PANELS = 8;
const config = {
  displaylogo: false, typesetMath: false, displayModeBar: false, scrollZoom: false, doubleClick: "reset",
};
// A trace's `meta` is the id of its one case, or { cases }, the rows of those that it is of together.
const showsSelected = (meta) => {
  if (!meta || !state.filters.size) return true;
  return meta.cases ? meta.cases.some((row) => selectedSet().has(row)) : isSelected(meta);
};

// A ready-made figure without what belongs to cases that are not selected.
const ofSelected = ({ data: traces, layout }) => ({
  traces: traces.filter((trace) => showsSelected(trace.meta)), layout,
});

// The case that a click on a point opens; of several, which it names by their rows, the fastest that is selected.
const caseAt = (point) => {
  const said = [point.id, point.customdata, point.data.meta].flat();
  const ids = said.map((one) => (Number.isInteger(one) ? cases.case_id?.[one] : one)).filter((id) => rowOf.has(id));
  return ids.find(isSelected) || ids[0];
};

export const drawOne = async (plot, { traces, layout }) => {
  try {
    const size = { width: plot.clientWidth, height: plot.clientHeight };
    await Plotly.react(plot, traces, { ...themed(layout), ...size }, config);
    if (!plot.dataset.listens) {
      plot.dataset.listens = "yes";
      plot.on("plotly_click", ({ points }) => {
        const id = points.map(caseAt).find((found) => found) || plot.dataset.case;
        if (id) openCase(id);
      });
    }
  } catch (error) {  // one bad figure must not take the others with it
    plot.textContent = "This figure could not be drawn; the tables hold its numbers.";
    console.error(plot.id, error);
  }
};

const figureOf = (panel) => element(
  "figure", { data: { key: panel.key }, ...(panel.wide ? { class: "wide" } : {}) },
  element("figcaption"), element("div", { class: "plot", role: "img" }),
);
// What a panel says of itself; one that stays may say something else of other cases.
const headed = (figure, { title, height }, name) => {
  const [heading, plot] = [figure.querySelector("figcaption"), figure.querySelector(".plot")];
  heading.textContent = title || "";
  heading.hidden = !title;
  plot.style.height = `${height || 380}px`;
  plot.setAttribute("aria-label", `${name}${title ? `: ${title}` : ""}. The table of cases holds the numbers.`);
};

// The panels of a drawer, in place: those that stay are drawn anew, the others come and go.
const panelsOf = (container) => {
  const all = drawers[container.dataset.draw](selected());
  const most = Number(container.dataset.most || MOST_PANELS);
  const there = new Map([...container.querySelectorAll("figure")].map((figure) => [figure.dataset.key, figure]));
  const kept = all.slice(0, most).map((panel) => {
    const figure = there.get(panel.key) || figureOf(panel);
    there.delete(panel.key);
    headed(figure, panel, container.dataset.title);
    return [figure, panel];
  });
  for (const gone of there.values()) { Plotly.purge(gone.querySelector(".plot")); }
  const wanted = kept.map(([figure]) => figure);
  const stays = new Set(wanted);
  [...container.children].filter((child) => !stays.has(child)).forEach((child) => child.remove());
  // What stands where it shall is not moved: that would lay the whole page out anew.
  wanted.forEach((figure, at) => { if (container.children[at] !== figure) container.insertBefore(figure, container.children[at] || null); });
  if (all.length > most) {
    container.append(element("p", { class: "caption wide" }, `${most} of ${count(all.length, "figure")} are drawn. `, element(
      "button", { type: "button", onclick: () => { container.dataset.most = String(most * 4); redraw(); } }, "Draw more",
    )));
  }
  if (!all.length) {
    const why = selected().length || !state.filters.size ? container.dataset.empty : "No case is selected. “Show all” takes the filters away.";
    container.append(element("p", { class: "empty wide" }, why));
  }
  return kept.map(([figure, panel]) => [figure.querySelector(".plot"), panel]);
};

// Ready-made figures and rows of tables of cases that are not selected are hidden; a section that has nothing else
// says so.
const NONE_HERE = "No case that is drawn or listed here is among the selected.";
export const hideOthers = (within) => {
  for (const each of within.querySelectorAll("[data-case]")) {
    const hidden = !isSelected(each.dataset.case);
    (each.classList.contains("plot") ? each.closest("figure") : each).hidden = hidden;
  }
  for (const plot of within.querySelectorAll("[data-figure]:not([data-case])")) {
    const traces = figures[plot.dataset.figure].data;
    const tied = traces.filter((trace) => trace.meta);
    plot.closest("figure").hidden = tied.length > 0 && !tied.some((trace) => showsSelected(trace.meta));
  }
  for (const each of within.querySelectorAll("[data-of]")) {  // of several cases together, by their rows
    each.hidden = !showsSelected({ cases: each.dataset.of.split(" ").map(Number) });
  }
  for (const table of within.querySelectorAll("table:has(tr:is([data-case], [data-of]))")) {
    const whole = table.closest("details") || table.closest(".scroll") || table;
    whole.hidden = !table.querySelector("tr:is([data-case], [data-of]):not([hidden])");
  }
  for (const section of within.querySelectorAll("section:has([data-case], [data-of], [data-figure])")) {
    const shown = "figure:not([hidden]), [data-draw], .scroll:not([hidden], section [hidden] *), details:not(.reading, [hidden], section [hidden] *)";
    section.querySelector(":scope > .none")?.remove();
    if (!section.querySelector(shown)) section.append(element("p", { class: "empty none" }, NONE_HERE));
  }
};

export const pause = () => new Promise((resolve) => { setTimeout(resolve, 0); });
export const fresh = new WeakSet();  // what is drawn as the reader's choice is now
let turn = 0;

// `atOnce`: without a pause, for paper, which waits for nothing that comes later.
export const drawWithin = async (within, atOnce = false) => {
  const mine = (turn += 1);
  document.documentElement.dataset.drawn = "no";
  const drawing = [];
  // Each piece of work is a task of its own: between them the page answers to the reader.
  const goesOn = async (done) => {
    await done;
    await pause();
    return turn === mine;
  };
  if (!atOnce && !await goesOn()) return;
  hideOthers(within);
  for (const container of within.querySelectorAll("[data-draw]")) {
    if (fresh.has(container)) continue;
    if (!atOnce && !await goesOn()) return;
    const panels = panelsOf(container);
    if (!atOnce && !await goesOn()) return;
    for (const [plot, panel] of panels) {
      const done = drawOne(plot, panel);
      if (atOnce) drawing.push(done);
      else if (!await goesOn(done)) return;
    }
    fresh.add(container);
  }
  for (const plot of within.querySelectorAll("[data-figure]")) {
    if (fresh.has(plot) || plot.closest("figure").hidden) continue;
    const done = drawOne(plot, ofSelected(figures[plot.dataset.figure]));
    fresh.add(plot);
    if (atOnce) drawing.push(done);
    else if (!await goesOn(done)) return;
  }
  await Promise.all(drawing);
  if (turn === mine) document.documentElement.dataset.drawn = "yes";
};
export const everyPlot = () => document.querySelectorAll("[data-draw], [data-figure]");
export const seen = () => document.querySelector("[role=tabpanel]:not([hidden])") || document;
const redraw = () => { everyPlot().forEach((plot) => fresh.delete(plot)); drawWithin(seen()); };
export const paint = () => { if (typeof Plotly === "undefined") hideOthers(document); else redraw(); };

export const startPlots = () => {
  onChange((what) => {
    if (what === "filters" || what === "address") paint();
    else if (what === "tab" && typeof Plotly !== "undefined") drawWithin(seen());
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  // A window of another width: figures of tabs that are closed too, when they are opened.
  let drawnWidth = innerWidth;
  let settling = 0;
  addEventListener("resize", () => {
    clearTimeout(settling);
    settling = setTimeout(() => {
      if (innerWidth === drawnWidth) return;  // a phone's bars come and go with every scroll
      drawnWidth = innerWidth;
      paint();
    }, 100);
  });
};
