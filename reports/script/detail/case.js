// What is known of one case.
import { laidOut } from "../charts/layout.js";
import { marginMs, marginRate } from "../core/cases.js";
import { cases, counts, data, distinct, groupBy, launches, launchesOf } from "../core/data.js";
import { element, part, why } from "../core/element.js";
import { count, known, say } from "../core/format.js";
import { columnsOf } from "../table/columns.js";

const foundOf = data.findings || { n: 0 };
const findingsOf = groupBy(Array.from({ length: foundOf.n }, (_, i) => i), (i) => foundOf.case[i]);

// From a file on disk the clipboard may be refused: then the text is selected, ready for the keyboard.
const copyButton = (pre) => {
  const told = element("output", { role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(pre.textContent);
      told.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(pre);
      told.textContent = "Selected: press Ctrl+C or ⌘C.";
    }
  };
  return element("p", { class: "copy" }, element("button", { type: "button", class: "plain", onclick: copy }, "Copy"), told);
};

const numbersOf = (row) => {
  const unit = cases.throughput_unit[row];
  const sure = known(cases.plus_minus_s[row]);
  const told = [
    [`step time, ${cases.statistic[row]}`, say.ms(cases.step_time_s[row]), "ms", cases.step_time_s[row], sure && marginMs(row)],
    ["90th percentile of steps", say.ms(cases.p90_s[row]), "ms", cases.p90_s[row]],
    ["throughput", say.rate(cases.tokens_per_s[row]), unit, cases.tokens_per_s[row], sure && marginRate(row)],
    ["peak memory", say.mib(cases.peak_memory_bytes[row]), "MiB", cases.peak_memory_bytes[row]],
  ];
  const numbers = element("dl", { class: "numbers" }, ...told.map(([name, value, unitOf, number, margin]) => element(
    "div", {}, element("dt", {}, name),
    element("dd", {}, ...(known(number)
      ? [value, ...(margin ? [" ", element("small", {}, "±"), ` ${margin}`] : []), " ", element("small", {}, unitOf)]
      : ["unknown"])),
  )));
  return known(cases.step_time_s[row]) ? [numbers, element("p", { class: "caption" }, howMade(row))] : [numbers];
};
// What the numbers above are.
const howMade = (row) => {
  const spread = known(cases.spread[row]) ? `the slowest launch is ${say.percent(cases.spread[row])} over the fastest` : "the spread is unknown: one launch";
  const margin = known(cases.plus_minus_s[row]) ? "± is the half-width of a 95% interval (Student's t), from what case and block "
    + "leave unexplained in its launches, weighed together with that of all cases of its work" : "± is unknown";
  return `Both times are one number a launch, then the mean over launches on the log scale; ${margin}; ${spread}. `
    + "Memory is the largest of all launches.";
};

const partsOf = (row) => {
  const there = data.parts.filter(([column]) => known(cases[column][row]));
  if (!there.length) return why("The parts of its step were not recorded.");
  const sum = there.reduce((total, [column]) => total + cases[column][row], 0);
  const bars = element("ul", { class: "bars" }, ...there.map(([column, name]) => element(
    "li", {}, element("span", {}, name),
    element("span", { class: "track" }, element("i", { style: `width: ${(100 * cases[column][row] / sum).toFixed(1)}%` })),
    element("span", { class: "n" }, `${say.ms(cases[column][row])} ms`),
  )));
  const statistic = cases.statistic[row];
  const other = statistic === "median" ? "" : `, while the step time above is the ${statistic}`;
  const made = statistic === "mean" ? "Means over the steps of the loop on one rank, then over launches."
    : `Medians over steps of the slowest rank, then over launches${other}: they need not add up to it.`;
  return [bars, element("p", { class: "caption" }, made)];
};

const bucketsOf = (row) => {
  const sizes = (cases.bucket_bytes[row] || "").split(" ").filter(Boolean).map(Number);
  if (!sizes.length) return why("Bucket sizes were not recorded: its strategy has no buckets, or no launch succeeded.");
  const runs = [];  // neighbours of one size together
  for (const size of sizes) {
    const said = say.mib(size);
    if (runs.at(-1)?.[0] === said) runs.at(-1)[1] += 1;
    else runs.push([said, 1]);
  }
  const listed = runs.map(([said, n]) => (n > 1 ? `${n} × ${said}` : said)).join(", ");
  return element("p", {}, `${count(sizes.length, "bucket")}: ${listed} MiB.`);
};

const LAUNCH_COLUMNS = ["block", "status", "launch_step_s", "p90_s", "drift", "wall_s"];
const launchesTable = (own) => {
  const columns = columnsOf("launches", launches, LAUNCH_COLUMNS);
  const cell = ({ name, cell: made }, i) => [
    made(i), name === "status" && launches.error[i] ? element("div", { class: "error" }, launches.error[i]) : null,
  ];
  const place = (at) => (at < 2 ? "t" : "n");
  return element(
    "div", { class: "scroll", role: "region", "aria-label": "Its launches", tabindex: "0" },
    element("table", {}, element("thead", {}, element(
      "tr", {}, ...columns.map(({ head }, at) => element("th", { scope: "col", class: place(at) }, head)),
    )), element("tbody", {}, ...own.map((i) => element(
      "tr", {}, ...columns.map((column, at) => element("td", place(at) === "n" ? { class: "n" } : {}, ...cell(column, i))),
    )))),
  );
};

const findingList = (row) => {
  const own = findingsOf.get(row) || [];
  if (!own.length) return why("None is about this case alone.");
  return element("ul", { class: "findings" }, ...own.map((i) => element(
    "li", {}, element("code", {}, foundOf.code[i]), element("p", {}, foundOf.message[i]),
    element("p", { class: "advice" }, foundOf.advice[i]),
  )));
};

const COLOR = "#0072B2";
const launchPanel = (row, own) => {
  const counted = own.filter((i) => counts(i));
  const block = counted.map((i) => launches.block[i]);
  return {
    traces: [{
      type: "scatter", mode: counted.length > 1 ? "lines+markers" : "markers", x: block,
      y: counted.map((i) => launches.launch_step_s[i] * 1e3), line: { color: COLOR, width: 1, dash: "dot" },
      marker: { color: COLOR, size: 9 },
      hovertemplate: "block %{x}: %{y:.4~g} ms<extra></extra>",
    }],
    layout: laidOut("block", "step time (ms)", { xaxis: distinct(block).length <= 12 ? { tickvals: distinct(block) } : {} }),
  };
};

// The parts of its details. `draw` gives the place of a figure, of `plots` and `tables` the page holds ready-made.
export const caseDetail = (row, { plots, tables }, draw) => {
  const own = [...launchesOf[row]].sort((a, b) => launches.block[a] - launches.block[b]);
  const again = element("pre", { tabindex: "0" }, cases.rerun[row]);
  return [
    ...numbersOf(row),
    part("Launches", own.some((i) => counts(i)) ? draw("The number of each launch, block by block", "220px", launchPanel(row, own))
      : why("No launch of it counts, so there is no number to draw."), launchesTable(own)),
    part("Parts of a step", partsOf(row)),
    part("Buckets", bucketsOf(row)),
    part("Timeline, collectives and memory over time",
      ...plots.map(({ title, height, panel }) => element("figure", {}, element("figcaption", {}, title), draw(title, height, panel))),
      plots.length ? "" : why("The page holds none of this case: it keeps them of a few, where they were recorded.")),
    tables,
    part("Warnings", findingList(row)),
    part("Measure this case again", again.textContent ? [again, copyButton(again)]
      : why("The session's plan does not tell of this case, so its command is unknown.")),
  ];
};
