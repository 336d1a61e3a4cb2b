// The dialog with the details of a case. A click on the case opens it, or an address that names the case.
import { drawOne } from "../charts/plots.js";
import { cases, figures, rowOf } from "../core/data.js";
import { element } from "../core/element.js";
import { closeCase, onChange, state } from "../core/state.js";

const panelOf = (figure) => {
  const { data: traces, layout } = structuredClone(figure);
  return { traces, layout };
};
const titleOf = (each) => each.closest("section")?.querySelector("h2")?.textContent || "";

// The page's figures of the case: [title, height, figure].
const figuresOf = (own) => own.filter((each) => figures[each.dataset.figure]).map((each) => {
  const caption = each.closest("figure")?.querySelector("figcaption")?.textContent;
  return [[titleOf(each), caption].filter(Boolean).join(": "), each.style.height, figures[each.dataset.figure]];
});
// Copies of the table rows about the case: [title, table].
const tablesOf = (own) => {
  const rows = own.filter((each) => each.tagName === "TR" && !each.closest("[data-table]"));
  return [...Map.groupBy(rows, (row) => row.closest("table"))].map(([table, trs]) => {
    const visible = trs.map((tr) => { const copy = tr.cloneNode(true); copy.hidden = false; return copy; });
    const title = table.closest(".scroll")?.getAttribute("aria-label") || titleOf(table);
    return [title, element("table", {}, table.tHead.cloneNode(true), element("tbody", {}, ...visible))];
  });
};

// Browsers do not let a file on disk write to the clipboard. Then the text is selected, to copy it by keyboard.
const copy = async (pre, output) => {
  try {
    await navigator.clipboard.writeText(pre.textContent);
    output.textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(pre);
    output.textContent = "Selected: press Ctrl+C or ⌘C.";
  }
};

const fill = async (dialog, id, made) => {
  dialog.dataset.drawn = "no";
  dialog.replaceChildren(made.content.cloneNode(true));
  const own = [...document.querySelectorAll("main [data-case]")].filter((each) => each.dataset.case.split("|").includes(id));
  const drawn = [];
  const further = dialog.querySelector("[data-figures]");
  for (const [title, height, figure] of further ? figuresOf(own) : []) {
    const plot = element("div", { class: "plot", role: "img", style: `height: ${height}`, "aria-label": title });
    further.hidden = false;
    further.append(element("figure", {}, element("figcaption", {}, title), plot));
    drawn.push([plot, figure]);
  }
  const tables = dialog.querySelector("[data-tables]");
  for (const [title, table] of tablesOf(own)) {
    tables.hidden = false;
    tables.append(
      element("h4", {}, title), element("div", { class: "scroll", role: "region", "aria-label": title, tabindex: "0" }, table),
    );
  }
  dialog.querySelector("[data-close]").onclick = () => dialog.close();
  for (const button of dialog.querySelectorAll("[data-copy]")) {
    button.onclick = () => copy(dialog.querySelector("pre"), button.parentElement.querySelector("output"));
  }
  if (!dialog.open) dialog.showModal();
  dialog.querySelector(".within").scrollTop = 0;
  if (typeof Plotly !== "undefined") for (const [plot, figure] of drawn) await drawOne(plot, panelOf(figure));
  if (state.case === id) dialog.dataset.drawn = "yes";
};

export const startDetails = () => {
  if (!cases.n) return;
  const dialog = element("dialog", { class: "detail", "aria-labelledby": "detail-title" });
  const show = () => {
    const made = rowOf.has(state.case) && document.querySelector(`[data-details="${CSS.escape(state.case)}"]`);
    if (made) fill(dialog, state.case, made);
    else if (dialog.open) dialog.close();
  };
  document.body.append(dialog);
  dialog.addEventListener("close", () => {
    if (rowOf.has(state.case)) closeCase();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });  // outside of its content
  onChange((what) => { if (what === "case" || what === "address") show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (dialog.open) show(); });
  show();
};
