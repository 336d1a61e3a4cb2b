// Drawing: figures from the page's data (drawers) and ready-made ones (figures), in the page's colours, only those of the
// tab that is seen, one at a time so that the page stays quick to the touch.
//
// A drawer is a function of the selected rows: it gives panels {key, title, traces, layout, height, wide}. A point's `ids`
// or `customdata`, or its trace's `meta`, is the id of the case that a click opens.
const drawers = {};
const MOST_PANELS = 8;
const config = {
  responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false, doubleClick: "reset",
};
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isAxis = (key) => /^[xy]axis\d*$/.test(key);

// Text and grid take the page's colours, so one figure reads in light, dark and print.
const themed = (layout) => {
  const [ink, line, wash] = [colour("--ink"), colour("--line"), colour("--wash")];
  const font = { family: getComputedStyle(document.body).fontFamily, color: ink };
  const dressed = {
    ...layout, dragmode: false, font: { size: 13, ...layout.font, ...font },
    hoverlabel: { bgcolor: wash, bordercolor: line, font: { ...font }, align: "left" },
  };
  for (const key of Object.keys(layout).filter(isAxis)) {
    // On a touch screen a drag must scroll the page, not the axes.
    dressed[key] = {
      ...layout[key], fixedrange: true, gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line,
    };
  }
  return dressed;
};

// The look of every figure that is drawn here; `more` are its own settings.
const laidOut = (x, y, more = {}) => {
  const axis = (title, own = {}) => ({
    title: { text: title, standoff: 10, font: { size: 13 } }, automargin: true, zeroline: false, ...own,
  });
  return {
    margin: { l: 8, r: 12, t: 8, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    hovermode: "closest", legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom" },
    ...more, xaxis: axis(x, more.xaxis), yaxis: axis(y, more.yaxis),
  };
};

// A ready-made figure without what belongs to cases that are not selected.
const ofSelected = ({ data: traces, layout }) => ({
  traces: traces.filter((trace) => !trace.meta || isSelected(trace.meta)), layout,
});

const caseAt = (point) => [point.id, point.customdata, point.data.meta].flat().find((id) => rowOf.has(id));

const drawOne = async (plot, { traces, layout }) => {
  try {
    await Plotly.react(plot, traces, themed(layout), config);
    if (!plot.dataset.listens) {
      plot.dataset.listens = "yes";
      plot.on("plotly_click", ({ points }) => {
        const id = points.map(caseAt).find((found) => found) || plot.dataset.case;
        if (id && typeof openCase === "function") openCase(id);
      });
    }
  } catch (error) {  // one bad figure must not take the others with it
    plot.textContent = "This figure could not be drawn; the tables hold its numbers.";
    console.error(plot.id, error);
  }
};

const figureOf = (panel, name) => element(
  "figure", { data: { key: panel.key }, ...(panel.wide ? { class: "wide" } : {}) },
  panel.title ? element("figcaption", {}, panel.title) : null,
  element("div", {
    class: "plot", role: "img", style: `height: ${panel.height || 380}px`,
    "aria-label": `${name}${panel.title ? `: ${panel.title}` : ""}. The table of cases holds the numbers.`,
  }),
);

// The panels of a drawer, in place: those that stay are drawn anew, the others come and go.
const panelsOf = (container) => {
  const all = drawers[container.dataset.draw](selected());
  const most = Number(container.dataset.most || MOST_PANELS);
  const there = new Map([...container.querySelectorAll("figure")].map((figure) => [figure.dataset.key, figure]));
  const kept = all.slice(0, most).map((panel) => {
    const figure = there.get(panel.key) || figureOf(panel, container.dataset.title);
    there.delete(panel.key);
    figure.querySelector(".plot").style.height = `${panel.height || 380}px`;
    return [figure, panel];
  });
  for (const gone of there.values()) { Plotly.purge(gone.querySelector(".plot")); }
  container.replaceChildren(...kept.map(([figure]) => figure));
  if (all.length > most) {
    container.append(element("p", { class: "caption wide" }, `${most} of ${count(all.length, "figure")} are drawn. `, element(
      "button", { type: "button", onclick: () => { container.dataset.most = String(most * 4); redraw(); } }, "Draw more",
    )));
  }
  if (!all.length) {
    const why = selected().length ? container.dataset.empty : "No case is selected. “Show all” takes the filters away.";
    container.append(element("p", { class: "empty wide" }, why));
  }
  return kept.map(([figure, panel]) => [figure.querySelector(".plot"), panel]);
};

// Ready-made figures and rows of tables of cases that are not selected are hidden.
const hideOthers = (within) => {
  for (const each of within.querySelectorAll("[data-case]")) {
    const hidden = !isSelected(each.dataset.case);
    (each.classList.contains("plot") ? each.closest("figure") : each).hidden = hidden;
  }
};

const pause = () => new Promise((resolve) => { setTimeout(resolve, 0); });
const fresh = new WeakSet();  // what is drawn as the reader's choice is now
let turn = 0;

const drawWithin = async (within) => {
  const mine = (turn += 1);
  document.documentElement.dataset.drawn = "no";
  hideOthers(within);
  for (const container of within.querySelectorAll("[data-draw]")) {
    if (fresh.has(container)) continue;
    for (const [plot, panel] of panelsOf(container)) {
      await drawOne(plot, panel);
      await pause();
      if (turn !== mine) return;
    }
    fresh.add(container);
  }
  for (const plot of within.querySelectorAll("[data-figure]")) {
    if (fresh.has(plot) || plot.closest("figure").hidden) continue;
    await drawOne(plot, ofSelected(figures[plot.dataset.figure]));
    fresh.add(plot);
    await pause();
    if (turn !== mine) return;
  }
  document.documentElement.dataset.drawn = "yes";
};
const everyPlot = () => document.querySelectorAll("[data-draw], [data-figure]");
const seen = () => document.querySelector("[role=tabpanel]:not([hidden])") || document;
const redraw = () => { everyPlot().forEach((plot) => fresh.delete(plot)); drawWithin(seen()); };
const paint = () => { if (typeof Plotly !== "undefined") redraw(); };

onChange((what) => {
  if (what === "filters" || what === "address") paint();
  else if (what === "tab" && typeof Plotly !== "undefined") drawWithin(seen());
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
