// On paper there are no tabs to open: everything is shown and drawn, in the width and the colours of paper, and then as
// it was. The browser takes its picture right after `beforeprint`, so all of it is done within.
let opened = [];
const printing = () => {
  if (document.documentElement.dataset.print) return;
  document.documentElement.dataset.print = "yes";
  opened = [...document.querySelectorAll("details:not([open]):not(.filter)")];
  for (const each of opened) each.open = true;
  fillTables(true);
  everyPlot().forEach((plot) => fresh.delete(plot));
  if (typeof Plotly === "undefined") hideOthers(document);
  else drawWithin(document, true);
};
const printed = () => {
  delete document.documentElement.dataset.print;
  for (const each of opened) each.open = false;
  paint();
};
addEventListener("beforeprint", printing);
addEventListener("afterprint", printed);
matchMedia("print").addEventListener("change", ({ matches }) => { if (matches) printing(); else printed(); });
