// Tables that stand in the page as they are, sorted by a click on a head; unknown stays last either way.
const sortRows = (table, column, header) => {
  const descending = header.getAttribute("aria-sort") === "ascending";
  const text = header.dataset.kind === "text";
  const sorted = [...table.tBodies[0].rows].sort((a, b) => {
    const [x, y] = [a.cells[column].dataset.key, b.cells[column].dataset.key];
    if (!x || !y) return (x ? 0 : 1) - (y ? 0 : 1);
    const order = text ? x.localeCompare(y, "en", { numeric: true }) : Number(x) - Number(y);
    return descending ? -order : order;
  });
  table.tBodies[0].append(...sorted);
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
};
for (const table of document.querySelectorAll("table.sortable")) {
  for (const [column, header] of [...table.tHead.rows[0].cells].entries()) {
    header.querySelector("button").addEventListener("click", () => sortRows(table, column, header));
  }
}
