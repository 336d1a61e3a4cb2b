// On paper there are no tabs to open: everything is shown and drawn, and then as it was.
const printing = () => {
  document.documentElement.dataset.print = "yes";
  document.querySelectorAll("details:not(.filter)").forEach((d) => { d.open = true; });
  everyPlot().forEach((plot) => fresh.delete(plot));
  return drawWithin(document);
};
const printed = () => { delete document.documentElement.dataset.print; paint(); };
addEventListener("beforeprint", printing);
addEventListener("afterprint", printed);
matchMedia("print").addEventListener("change", ({ matches }) => { if (matches) printing(); else printed(); });
