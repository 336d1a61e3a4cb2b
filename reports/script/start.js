// The entry point. Listeners are called in the order in which these functions register them.
import { drawWithin, hideOthers, seen, startPlots } from "./charts/plots.js";
import { startFilters } from "./core/filters.js";
import { startLive } from "./core/live.js";
import { startState } from "./core/state.js";
import { startTabs } from "./core/tabs.js";
import { startDetails } from "./detail/open.js";
import { startPrinting } from "./print.js";
import { declared } from "./table/columns.js";
import { buildTables } from "./table/table.js";

const plotly = typeof Plotly !== "undefined";
startState();
startFilters();
startTabs();
startPlots();
startPrinting();
startDetails();
startLive();
buildTables(declared);
if (plotly) drawWithin(seen());
else {
  hideOthers(document);
  document.documentElement.dataset.drawn = "yes";
}
