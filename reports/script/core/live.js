// On a page that `parabench serve` gives: how far the run is, and whether there is a newer page. On one from disk it does
// nothing at all.
// What a reader has open or looks at: it must not go away below their eyes.
import { element } from "./element.js";

const atRest = (openAtFirst) => scrollY < 8
  && !document.querySelector("dialog[open], .plot:hover, .hoverlayer .hovertext")
  && [...document.querySelectorAll("details[open]")].every((each) => openAtFirst.has(each))
  && (getSelection()?.isCollapsed ?? true)
  && !document.activeElement?.matches("input, select, textarea, button:not([role=tab])")
  && !document.documentElement.dataset.print;

// The address keeps tab, filters, order and open case; this keeps the rest over the change to the newer page.
const KEPT = "parabench.serve";
const everyDetails = () => [...document.querySelectorAll("details")].map((each) => [
  `${each.closest("[id]")?.id} ${each.querySelector("summary")?.textContent.replace(/\d+/g, "#")}`, each,
]);
const renew = () => {
  const opened = everyDetails().filter(([, each]) => each.open).map(([name]) => name);
  const kept = { y: scrollY, opened, focus: document.activeElement?.id || "" };
  try { sessionStorage.setItem(KEPT, JSON.stringify(kept)); } catch { /* no storage, nothing kept */ }
  location.reload();
};
const asItWas = () => {
  let kept = null;
  try {
    kept = JSON.parse(sessionStorage.getItem(KEPT));
    sessionStorage.removeItem(KEPT);
  } catch { /* nothing kept */ }
  if (!kept) return;
  history.scrollRestoration = "manual";
  for (const [name, each] of everyDetails()) if (kept.opened.includes(name)) each.open = true;
  if (kept.focus) document.getElementById(kept.focus)?.focus({ preventScroll: true });
  const drawn = () => {  // only then is the page as long as it was
    if (document.documentElement.dataset.drawn !== "yes") return;
    watching.disconnect();
    scrollTo(0, kept.y);
    history.scrollRestoration = "auto";
  };
  const watching = new MutationObserver(drawn);
  watching.observe(document.documentElement, { attributeFilter: ["data-drawn"] });
  drawn();
};

const follow = (served) => {
  const openAtFirst = new Set(document.querySelectorAll("details[open]"));
  const [done, said, error, show] = [
    element("progress", { "aria-label": "Launches done", max: 1, value: 0 }), element("b", {}),
    element("span", { class: "error" }),
    element("button", { type: "button", hidden: true, onclick: renew }, "Show the newer page"),
  ];
  const news = element("output", {}, show);
  document.body.append(element("aside", { class: "live", "aria-label": "The run" }, done, element("p", {}, said, " ", error), news));

  const tell = (now) => {
    done.hidden = !now.planned;
    done.max = now.planned || 1;
    done.value = now.done;
    said.textContent = now.said;
    error.textContent = now.error;
    const newer = now.page !== "" && now.page !== served.content;
    if (newer && atRest(openAtFirst)) { renew(); return false; }
    show.hidden = !newer;
    return true;
  };

  let again = 0;
  const ask = async () => {
    clearTimeout(again);
    if (document.hidden) return;  // whoever does not look costs the run nothing
    let wait = 10;
    try {
      const answer = await fetch("progress", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const now = await answer.json();
      wait = now.again_s;
      if (!tell(now)) return;
    } catch {
      said.textContent = "parabench serve does not answer any more; the page stays as it is.";
      error.textContent = "";
    }
    again = setTimeout(ask, wait * 1000);
  };
  document.addEventListener("visibilitychange", ask);
  asItWas();
  ask();
};

export const startLive = () => {
  const served = document.querySelector("meta[name=parabench-live]");
  if (served && location.protocol === "http:") follow(served);
};
