"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = {
    responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false, doubleClick: "reset",
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Text and grid take the page's colours, so one figure reads in light, dark and print.
  const themed = (layout) => {
    const theme = {
      "font.color": colour("--ink"), "font.family": getComputedStyle(document.body).fontFamily,
      "hoverlabel.bgcolor": colour("--wash"), "hoverlabel.bordercolor": colour("--line"),
      "hoverlabel.font.color": colour("--ink"),
    };
    for (const axis of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
      theme[`${axis}.gridcolor`] = colour("--line");
      theme[`${axis}.linecolor`] = colour("--line");
      theme[`${axis}.zerolinecolor`] = colour("--line");
      theme[`${axis}.tickcolor`] = colour("--line");
    }
    return theme;
  };
  const plots = () => Object.keys(figures).map((id) => document.getElementById(id));
  const paint = () => plots().map((plot) => Plotly.relayout(plot, themed(figures[plot.id].layout)));

  const draw = async () => {
    for (const plot of plots()) {
      const figure = figures[plot.id];
      for (const key of Object.keys(figure.layout)) {
        // On a touch screen a drag must scroll the page, not the axes.
        if (/^[xy]axis\d*$/.test(key)) figure.layout[key].fixedrange = true;
      }
      try {
        await Plotly.newPlot(plot, figure.data, { ...figure.layout, dragmode: false }, config);
        await Plotly.relayout(plot, themed(figure.layout));
      } catch (error) {  // one bad figure must not take the others with it
        plot.textContent = "This figure could not be drawn; the table of cases holds its numbers.";
        console.error(plot.id, error);
      }
    }
    document.documentElement.dataset.drawn = "yes";
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  const printing = () => { paint(); plots().forEach((plot) => Plotly.Plots.resize(plot)); };
  addEventListener("beforeprint", printing);
  addEventListener("afterprint", printing);

  // A closed <details> would not print.
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));

  const sort = (table, column, header) => {
    const descending = header.getAttribute("aria-sort") === "ascending";
    const text = header.dataset.kind === "text";
    const value = (row) => row.cells[column].dataset.key;
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (!x || !y) return (x ? 0 : 1) - (y ? 0 : 1);  // unknown stays last either way
      const order = text ? x.localeCompare(y, "en", { numeric: true }) : Number(x) - Number(y);
      return descending ? -order : order;
    });
    table.tBodies[0].append(...rows);
    for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const [column, header] of [...table.tHead.rows[0].cells].entries()) {
      header.querySelector("button").addEventListener("click", () => sort(table, column, header));
    }
  }
})();
