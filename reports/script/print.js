// Printing: all tabs are shown and drawn, in the width and colors of paper, and restored afterwards. The browser prints
// right after the event `beforeprint`, so its listener does all of this.
import { drawWithin, everyPlot, fresh, hideOthers, paint } from "./charts/plots.js";
import { element } from "./core/element.js";
import { count } from "./core/format.js";
import { fillTables, rowsInOrder } from "./table/table.js";

// The most table rows and opened details on paper, and the most rows and sentences within such details. The page has all.
const MOST_ON_PAPER = 30;
const MOST_WITHIN = 12;
let opened = [];
// Hide all but the first `most` of the elements, and add a sentence about the rest. `whole` is the number of all, shown or
// not.
const shorten = (shown, whole, most, thing, below) => {
  if (whole <= most) return;
  for (const one of shown.slice(most)) one.classList.add("beyond");
  below(element("p", { class: "caption on-paper" }, `The first ${most} of ${count(whole, thing)}; the page has all.`));
};
const shortenAll = () => {
  for (const table of document.querySelectorAll("main table")) {
    const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
    const most = table.closest("details") ? MOST_WITHIN : MOST_ON_PAPER;
    shorten(rows, rowsBehind(table) ?? rows.length, most, "row", (note) => table.closest(".scroll").after(note));
  }
  for (const more of document.querySelectorAll("main .findings details")) {
    const sentences = [...more.querySelectorAll("p")].filter((one) => !one.hidden);
    shorten(sentences, sentences.length, MOST_WITHIN, "further warning", (note) => more.append(note));
  }
};
const lengthen = () => {
  document.querySelectorAll(".beyond").forEach((one) => one.classList.remove("beyond"));
  document.querySelectorAll(".on-paper").forEach((note) => note.remove());
};
const rowsBehind = (table) => {
  const name = table.closest("[data-table]")?.dataset.table;
  return name ? rowsInOrder(name).length : null;
};
const printing = () => {
  if (document.documentElement.dataset.print) return;
  document.documentElement.dataset.print = "yes";
  const closed = [...document.querySelectorAll("details:not([open]):not(.filter)")];
  opened = [...Map.groupBy(closed, (each) => each.parentElement).values()].flatMap((own) => own.slice(0, MOST_ON_PAPER));
  for (const each of opened) each.open = true;
  fillTables(true);
  everyPlot().forEach((plot) => fresh.delete(plot));
  if (typeof Plotly === "undefined") hideOthers(document);
  else drawWithin(document, true);  // hides unselected cases before its first pause
  shortenAll();
};
const printed = () => {
  delete document.documentElement.dataset.print;
  for (const each of opened) each.open = false;
  lengthen();
  paint();
};
export const startPrinting = () => {
  addEventListener("beforeprint", printing);
  addEventListener("afterprint", printed);
  matchMedia("print").addEventListener("change", ({ matches }) => { if (matches) printing(); else printed(); });
};
