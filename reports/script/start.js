// Last: everybody is there.
buildTables();
showCase();
if (typeof Plotly === "undefined") {
  hideOthers(document);
  document.documentElement.dataset.drawn = "yes";
} else drawWithin(seen());
