// Tabs as in the ARIA Authoring Practices: arrow keys move, and the address keeps the tab. Printing shows all tabs.
import { change, onChange, state } from "./state.js";

let tabs = [];
const tabOf = (name) => tabs.find((tab) => tab.dataset.tab === name);
const shownTab = () => (tabOf(state.tab) || tabs[0])?.dataset.tab || "";

const showTab = () => {
  const shown = shownTab();
  for (const tab of tabs) {
    const on = tab.dataset.tab === shown;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    document.getElementById(tab.getAttribute("aria-controls")).hidden = !on;
    if (on) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
};
const stuckHeight = () => {
  const list = document.querySelector("[role=tablist]");
  return list.closest(".bar").offsetHeight || list.offsetHeight;
};
// Scroll to the start of a new tab, below the bar at the top of the window.
const toItsTop = () => {
  const panel = document.getElementById(tabOf(shownTab()).getAttribute("aria-controls"));
  const over = panel.getBoundingClientRect().top - stuckHeight();
  if (over < 0) scrollBy({ top: over, behavior: "instant" });
};
const goTo = (name) => {
  if (name === shownTab()) return;
  change("tab", (now) => { now.tab = name; });
  toItsTop();
};

export const startTabs = () => {
  tabs = [...document.querySelectorAll("[role=tab]")];
  for (const [at, tab] of tabs.entries()) {
    tab.addEventListener("click", (event) => { event.preventDefault(); goTo(tab.dataset.tab); });
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = tabs[(to + tabs.length) % tabs.length];
      goTo(next.dataset.tab);
      next.focus();
    });
  }
  // A link within the page opens the tab that contains its target.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-goes-to]");
    const target = link && document.getElementById(link.dataset.goesTo);
    if (!target) return;
    event.preventDefault();
    goTo(target.closest("[role=tabpanel]").dataset.tab);
    target.style.scrollMarginTop = `${stuckHeight() + 12}px`;
    target.scrollIntoView();
  });
  showTab();
  onChange((what) => { if (what === "tab" || what === "address") showTab(); });
};
