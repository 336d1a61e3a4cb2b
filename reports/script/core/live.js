// On a page from `parabench serve`: show the progress of the run, and load a newer page if the reader is at the top and
// uses nothing on this one. Otherwise offer a button. The address keeps tab, filters, order and open case.
import { element } from "./element.js";

const atRest = (openAtFirst) => scrollY < 8
  && !document.querySelector("dialog[open], .plot:hover, .hoverlayer .hovertext")
  && [...document.querySelectorAll("details[open]")].every((each) => openAtFirst.has(each))
  && (getSelection()?.isCollapsed ?? true)
  && !document.activeElement?.matches("input, select, textarea, button:not([role=tab])")
  && !document.documentElement.dataset.print;

const follow = (served) => {
  const openAtFirst = new Set(document.querySelectorAll("details[open]"));
  const [done, progressText, error, show] = [
    element("progress", { "aria-label": "Launches done", max: 1, value: 0 }), element("b", {}),
    element("span", { class: "error" }),
    element("button", { type: "button", hidden: true, onclick: () => location.reload() }, "Show the newer page"),
  ];
  const news = element("output", {}, show);
  document.body.append(element("aside", { class: "live", "aria-label": "The run" }, done, element("p", {}, progressText, " ", error), news));

  const tell = (now) => {
    done.hidden = !now.planned;
    done.max = now.planned || 1;
    done.value = now.done;
    progressText.textContent = now.text;
    error.textContent = now.error;
    const newer = now.page !== "" && now.page !== served.content;
    if (newer && atRest(openAtFirst)) { location.reload(); return false; }
    show.hidden = !newer;
    return true;
  };

  let again = 0;
  const ask = async () => {
    clearTimeout(again);
    if (document.hidden) return;  // a hidden page must not take time from the run
    let wait = 10;
    try {
      const answer = await fetch("progress", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      const now = await answer.json();
      wait = now.again_s;
      if (!tell(now)) return;
    } catch {
      progressText.textContent = "parabench serve does not respond, so this page is not updated.";
      error.textContent = "";
    }
    again = setTimeout(ask, wait * 1000);
  };
  document.addEventListener("visibilitychange", ask);
  ask();
};

export const startLive = () => {
  const served = document.querySelector("meta[name=parabench-live]");
  if (served && location.protocol === "http:") follow(served);
};
