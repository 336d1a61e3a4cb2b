// The details of a case, over the page: opened by a click on it, or by an address that names it.
import { drawOne } from "../charts/plots.js";
import { statusTag, tagsOf } from "../core/cases.js";
import { cases, figures, groupBy, rowOf } from "../core/data.js";
import { element, part } from "../core/element.js";
import { closeCase, hasDetails, onChange, state } from "../core/state.js";
import { caseDetail } from "./case.js";
import { sidesDetail } from "./sides.js";

const asPanel = ({ data: traces, layout }) => ({ traces, layout });
// What the page holds ready-made of the case: figures and rows of tables, each with what it is called there.
const readyMade = (id) => {
  const own = [...document.querySelectorAll("main [data-case]")].filter((each) => each.dataset.case.split("|").includes(id));
  const titleOf = (each) => each.closest("section")?.querySelector("h2")?.textContent || "";
  const plots = own.filter((each) => each.dataset.figure && figures[each.dataset.figure]).map((each) => ({
    title: [titleOf(each), each.closest("figure")?.querySelector("figcaption")?.textContent].filter(Boolean).join(": "),
    height: each.style.height,
    panel: asPanel(structuredClone(figures[each.dataset.figure])),
  }));
  const spare = (figures.of_case?.[id] || []).map(({ title, height, ...figure }) => ({
    title, height, panel: asPanel(structuredClone(figure)),
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
  return {
    plots: [...plots, ...spare],
    tables: copied.length
      ? part("In the page's other tables", ...copied.flatMap(([label, table]) => [element("h4", {}, label), table])) : "",
  };
};

const fill = async (dialog, row) => {
  dialog.dataset.drawn = "no";
  const id = cases.case_id[row];
  const drawn = [];
  const draw = (label, height, panel) => {
    const plot = element("div", { class: "plot", role: "img", style: `height: ${height}`, "aria-label": label });
    drawn.push([plot, panel]);
    return plot;
  };
  const parts = cases.rerun ? caseDetail(row, readyMade(id), draw) : sidesDetail(row, readyMade(id));
  dialog.replaceChildren(
    element(
      "header", {},
      element("div", {},
        element("h2", { id: "detail-title" }, cases.label[row]),
        cases.rerun ? element("p", {}, statusTag(cases.status[row]), ...tagsOf(row)) : null,
      ),
      element("button", { type: "button", class: "plain", onclick: () => dialog.close() }, "Close"),
    ),
    element("div", { class: "within" }, ...parts),
  );
  if (!dialog.open) dialog.showModal();
  dialog.querySelector(".within").scrollTop = 0;
  if (typeof Plotly !== "undefined") for (const [plot, panel] of drawn) await drawOne(plot, panel);
  if (state.case === id) dialog.dataset.drawn = "yes";
};

export const startDetails = () => {
  if (!hasDetails) return;
  const dialog = element("dialog", { class: "detail", "aria-labelledby": "detail-title" });
  const show = () => {
    const row = rowOf.get(state.case);
    if (row !== undefined) fill(dialog, row);
    else if (dialog.open) dialog.close();
  };
  document.body.append(dialog);
  dialog.addEventListener("close", () => {
    if (rowOf.has(state.case)) closeCase();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });  // beside it
  onChange((what) => { if (what === "case" || what === "address") show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (dialog.open) show(); });
  show();
};
