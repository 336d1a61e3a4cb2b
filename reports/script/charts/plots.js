// Draw the figures that Python made, in the colors of the page, with the points of the selected cases. Only figures of the
// visible tab are drawn, one at a time, so that the page reacts quickly.
import { figures } from "../core/data.js";
import { element } from "../core/element.js";
import { count } from "../core/format.js";
import { isSelected, onChange, openCase } from "../core/state.js";
import { themed, withShortNames } from "./layout.js";
import { caseAt, isDrawn, ofSelected, shows } from "./selection.js";

const MOST_PANELS = 8;
const config = {
  displaylogo: false, typesetMath: false, displayModeBar: false, scrollZoom: false, doubleClick: "reset",
};

export const drawOne = async (plot, { traces, layout, height, note }) => {
  try {
    if (height) plot.style.height = `${height}px`;
    const heading = plot.parentElement?.querySelector(":scope > figcaption");
    if (heading) {
      heading.dataset.title ??= heading.textContent;
      const { title } = heading.dataset;
      heading.textContent = title ? [title, note].filter(Boolean).join(" · ") : (note ?? "").replace(/^t/, "T");
      heading.hidden = !heading.textContent;
    }
    const size = { width: plot.clientWidth, height: plot.clientHeight };
    await Plotly.react(plot, withShortNames(traces), { ...themed(layout, traces), ...size }, config);
    if (!plot.dataset.listens) {
      plot.dataset.listens = "yes";
      plot.on("plotly_click", ({ points }) => {
        const id = points.map(caseAt).find((found) => found) || plot.dataset.case;
        if (id) openCase(id);
      });
    }
  } catch (error) {  // an error in one figure must not prevent the others
    plot.textContent = "This figure could not be drawn; the tables hold its numbers.";
    console.error(plot.id, error);
  }
};

// Hide figures and table rows without selected cases. An empty section gets a note. If there are many
// figures, only the first ones are shown, with a button for more.
const NONE_HERE = "Nothing here is about a selected configuration.";
const isShown = ({ dataset }) => (dataset.case ? isSelected(dataset.case) : isDrawn(figures[dataset.figure]));
const limit = (panels) => {
  panels.querySelector(":scope > .more")?.remove();
  const there = [...panels.querySelectorAll(":scope > figure:not([hidden])")];
  const most = Number(panels.dataset.most || MOST_PANELS);
  if (there.length <= most) return;
  for (const figure of there.slice(most)) figure.hidden = true;
  const more = () => { panels.dataset.most = String(most * 4); drawWithin(seen()); };
  panels.append(element(
    "p", { class: "caption wide more" }, `${most} of ${count(there.length, "figure")} are drawn. `,
    element("button", { type: "button", onclick: more }, "Draw more"),
  ));
};
export const hideOthers = (within) => {
  for (const each of within.querySelectorAll("[data-case]:not(.plot)")) each.hidden = !shows(each.dataset.case);
  for (const plot of within.querySelectorAll("[data-figure]")) plot.closest("figure").hidden = !isShown(plot);
  within.querySelectorAll(".panels").forEach(limit);
  for (const table of within.querySelectorAll("table:has([data-case])")) {
    const whole = table.closest("details") || table.closest(".scroll") || table;
    whole.hidden = !table.querySelector("[data-case]:not([hidden])");
  }
  for (const section of within.querySelectorAll("section:has([data-case], [data-figure])")) {
    const shown = "figure:not([hidden]), .scroll:not([hidden], section [hidden] *), details:not(.reading, [hidden], section [hidden] *)";
    section.querySelector(":scope > .none")?.remove();
    if (!section.querySelector(shown)) section.append(element("p", { class: "empty none" }, NONE_HERE));
  }
};

export const pause = () => new Promise((resolve) => { setTimeout(resolve, 0); });
export const fresh = new WeakSet();  // plots that show the current selection
let turn = 0;

// `atOnce`: draw without pauses, because printing does not wait.
export const drawWithin = async (within, atOnce = false) => {
  const mine = (turn += 1);
  document.documentElement.dataset.drawn = "no";
  const drawing = [];
  // Each figure is drawn in a separate task. In between, the page reacts to the reader.
  const goesOn = async (done) => {
    await done;
    await pause();
    return turn === mine;
  };
  if (!atOnce && !await goesOn()) return;
  hideOthers(within);
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
export const everyPlot = () => document.querySelectorAll("[data-figure]");
export const seen = () => document.querySelector("[role=tabpanel]:not([hidden])") || document;
const redraw = () => { everyPlot().forEach((plot) => fresh.delete(plot)); drawWithin(seen()); };
export const paint = () => { if (typeof Plotly === "undefined") hideOthers(document); else redraw(); };

export const startPlots = () => {
  onChange((what) => {
    if (what === "filters" || what === "address") paint();
    else if (what === "tab" && typeof Plotly !== "undefined") drawWithin(seen());
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  // After a change of the width, draw again; figures in hidden tabs when their tab is opened.
  let drawnWidth = innerWidth;
  let settling = 0;
  addEventListener("resize", () => {
    clearTimeout(settling);
    settling = setTimeout(() => {
      if (innerWidth === drawnWidth) return;  // only the height changes when a phone shows or hides its bars
      drawnWidth = innerWidth;
      paint();
    }, 100);
  });
};
