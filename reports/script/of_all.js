// Sentences, the verdict's too, are made of all cases. While not all are selected they say so, on the screen and on paper.
const sayOfAll = () => {
  for (const place of document.querySelectorAll("[data-of-all]")) {
    place.hidden = selected().length === cases.n;
    place.textContent = place.hidden ? "" : `Of all ${count(cases.n, "case")}, selected or not: `;
  }
};
if (filterable.length) {
  sayOfAll();
  onChange((what) => { if (what === "filters" || what === "address") sayOfAll(); });
}
