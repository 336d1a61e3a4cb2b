// Opening and closing the details of a case, and the figures in them.

const ofCase = ({ data: traces, layout }, id) => ({
  traces: traces.filter((trace) => !trace.meta || trace.meta === id), layout,
});
// What the page holds ready-made of the case: figures and rows of tables, each with what it is called there.
const readyMade = (id) => {
  const own = [...document.querySelectorAll("main [data-case]")].filter((each) => each.dataset.case === id);
  const titleOf = (each) => each.closest("section")?.querySelector("h2")?.textContent || "";
  const plots = own.filter((each) => each.dataset.figure && figures[each.dataset.figure]).map((each) => ({
    title: [titleOf(each), each.closest("figure")?.querySelector("figcaption")?.textContent].filter(Boolean).join(": "),
    height: each.style.height,
    panel: ofCase(structuredClone(figures[each.dataset.figure]), id),
  }));
  const spare = (figures.of_case?.[id] || []).map(({ title, height, ...figure }) => ({
    title, height, panel: ofCase(structuredClone(figure), id),
  }));
  const rows = groupBy(own.filter((each) => each.tagName === "TR"), (row) => row.closest("table"));
  const copied = [...rows].filter(([table]) => !table.closest("#excluded, [data-table]")).map(([table, trs]) => {
    const visible = trs.map((tr) => { const copy = tr.cloneNode(true); copy.hidden = false; return copy; });
    const label = table.closest(".scroll")?.getAttribute("aria-label") || titleOf(table);
    return [label, element(
      "div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" },
      element("table", {}, table.tHead.cloneNode(true), element("tbody", {}, ...visible)),
    )];
  });
  return [[...plots, ...spare], copied];
};

const launchPanel = (row, own) => {
  const counted = own.filter((i) => counts(i));
  const block = counted.map((i) => launches.block[i]);
  const style = data.styles.strategy[cases.strategy[row]];
  return {
    traces: [{
      type: "scatter", mode: counted.length > 1 ? "lines+markers" : "markers", x: block,
      y: counted.map((i) => launches.number_s[i] * 1e3), line: { color: style.color, width: 1, dash: "dot" },
      marker: { color: style.color, size: 9, symbol: style.symbol },
      hovertemplate: "block %{x}: %{y:.4~g} ms<extra></extra>",
    }],
    layout: laidOut("block", "step latency (ms)", { xaxis: distinct(block).length <= 12 ? { tickvals: distinct(block) } : {} }),
  };
};
const plotIn = (label, height) => element("div", { class: "plot", role: "img", style: `height: ${height}`, "aria-label": label });

const fillDetail = async (row) => {
  detail.dataset.drawn = "no";
  const id = cases.case_id[row];
  const own = [...launchesOf[row]].sort((a, b) => launches.block[a] - launches.block[b]);
  const [plots, tablesOf] = readyMade(id);
  const drawn = [];
  const draw = (label, height, panel) => { const plot = plotIn(label, height); drawn.push([plot, panel]); return plot; };
  const again = element("pre", { tabindex: "0" }, rerunOf(row));
  const numbers = own.some((i) => counts(i));
  detail.replaceChildren(
    element(
      "header", {},
      element("div", {},
        element("h2", { id: "detail-title" }, cases.label[row]),
        element("p", {}, statusTag(cases.status[row]), ...tagsOf(row)),
      ),
      element("button", { type: "button", class: "plain", onclick: () => detail.close() }, "Close"),
    ),
    element("div", { class: "within" },
      ...numbersOf(row),
      part("Launches", numbers ? draw("The number of each launch, block by block", "220px", launchPanel(row, own))
        : why("No launch of it counts, so there is no number to draw."), launchesTable(own)),
      part("Parts of a step", partsOf(row)),
      part("Buckets", bucketsOf(row)),
      part("Timeline, collectives and memory over time",
        ...plots.map(({ title, height, panel }) => element("figure", {}, element("figcaption", {}, title), draw(title, height, panel))),
        plots.length ? "" : why("The page holds none of this case: it keeps them of a few, where they were recorded.")),
      tablesOf.length
        ? part("In the page's other tables", ...tablesOf.flatMap(([label, table]) => [element("h4", {}, label), table])) : "",
      part("Findings", findingList(row)),
      part("Measure this case again", again.textContent ? [again, copyButton(again)]
        : why("The session's plan does not tell of this case, so its command is unknown.")),
    ),
  );
  if (!detail.open) detail.showModal();
  detail.querySelector(".within").scrollTop = 0;
  if (typeof Plotly !== "undefined") for (const [plot, panel] of drawn) await drawOne(plot, panel);
  if (state.case === id) detail.dataset.drawn = "yes";
};

// An id that no case has, as an old address may, opens nothing.
const openCase = (id) => { if (rowOf.has(id) && state.case !== id) change("case", (now) => { now.case = id; }); };
const showCase = () => {
  const row = rowOf.get(state.case);
  if (row !== undefined) (data.rerun ? fillDetail : fillSides)(row);
  else if (detail.open) detail.close();
};

if (data.rerun || data.sides) {
  document.body.append(detail);
  detail.addEventListener("close", () => {
    if (rowOf.has(state.case)) closeCase();
  });
  detail.addEventListener("click", (event) => { if (event.target === detail) detail.close(); });  // beside it
  onChange((what) => { if (what === "case" || what === "address") showCase(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (detail.open) showCase(); });
}
