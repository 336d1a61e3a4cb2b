// The tables of the page: their columns, and those of their files.
import { caseButton, errorLine, marginMs, statusTag, subLine, tagsOf } from "../core/cases.js";
import {
  asTheyRan, blockName, cases, data, distinct, every, launches, others, sideColumn, sides,
} from "../core/data.js";
import { element } from "../core/element.js";
import { intervalOf, known, say, times } from "../core/format.js";
import { selected, selectedSet, state } from "../core/state.js";

const numberColumn = (name, head, values, said) => ({ name, head, values, cell: (i) => said(values[i]) });
const unitsOf = () => {
  const said = distinct(data.works.map(({ unit }) => unit)).join(" or ");
  return said.charAt(0).toUpperCase() + said.slice(1);
};

// Heads of columns that are called otherwise, or less exactly, inside of the page.
const CSV_HEADS = {
  low_s: "step_fastest_launch_s", high_s: "step_slowest_launch_s", p90_s: "step_p90_s",
  plus_minus_s: "step_time_plus_minus_s", tokens_per_s: "throughput_per_s",
};

const casesTable = () => {
  const margin = cases.plus_minus_s.some(known)
    ? [{
      name: "plus_minus_s", head: "± ms", values: cases.plus_minus_s,
      cell: (row) => (known(cases.plus_minus_s[row]) ? marginMs(row) : "–"),
    }] : [];
  return {
    initial: "step_time_s",
    rows: selected,
    good: (row) => cases.place[row],
    columns: [
      {
        name: "label", head: "Case", text: true, values: cases.label,
        cell: (row) => [caseButton(row), ...tagsOf(row)],
      },
      {
        name: "status", head: "Status", text: true, values: cases.status,
        cell: (row) => statusTag(cases.status[row]),
      },
      numberColumn("step_time_s", "Step ms", cases.step_time_s, say.ms),
      ...margin,
      numberColumn("spread", "Spread", cases.spread, say.percent),
      numberColumn("p90_s", "p90 ms", cases.p90_s, say.ms),
      numberColumn("tokens_per_s", `${unitsOf()}/s`, cases.tokens_per_s, say.rate),
      numberColumn("peak_memory_bytes", "Peak MiB", cases.peak_memory_bytes, say.mib),
      {
        name: "n_ok", head: "Launches ok", values: cases.n_ok,
        cell: (row) => `${say.whole(cases.n_ok[row])} of ${say.whole(cases.n_launches[row])}`,
      },
      { name: "error", head: "First error", text: true, values: cases.error, cell: (row) => errorLine(cases.error[row]) },
    ],
    csv: () => [
      ...Object.keys(cases).filter((name) => !["n", "work"].includes(name)).map((name) => [CSV_HEADS[name] || name, cases[name]]),
      ["throughput_unit", cases.work.map((work) => `${data.works[work].unit}/s`)],
    ],
  };
};

const launchesTable = () => {
  return {
    initial: "",
    rows: () => {
      if (!state.filters.size) return asTheyRan;
      const chosen = selectedSet();
      return asTheyRan.filter((i) => i < launches.n && chosen.has(launches.case[i]));
    },
    columns: [
      {
        name: "label", head: "Case", text: true, values: every.label,
        cell: (i) => (i < launches.n ? caseButton(launches.case[i]) : element("span", { class: "name" }, every.label[i])),
      },
      { name: "block", head: "Block", values: every.block, cell: (i) => blockName(every.block[i]) },
      numberColumn("position", "Position", every.position, say.whole),
      { name: "status", head: "Status", text: true, values: every.status, cell: (i) => statusTag(every.status[i]) },
      numberColumn("launch_step_s", "Step ms", every.launch_step_s, say.ms),
      numberColumn("p90_s", "p90 ms", every.p90_s, say.ms),
      numberColumn("drift", "Drift", every.drift, say.percent),
      numberColumn("wall_s", "Wall", every.wall_s, say.seconds),
      { name: "buckets", head: "Buckets", text: true, values: every.buckets, cell: (i) => every.buckets[i] || "" },
      { name: "error", head: "Error", text: true, values: every.error, cell: (i) => errorLine(every.error[i]) },
    ],
    csv: () => ["launch_id", "case_id", "label", ...Object.keys(launches)].filter(
      (name, at, all) => !["n", "case"].includes(name) && all.indexOf(name) === at,
    ).map((name) => [CSV_HEADS[name] || name, every[name]]),
  };
};

// On pages of several sides, what Python has put into words stands in columns of its own.
const ratioColumn = (side, name, head) => ({
  name: `${name}.${side}`, head, values: sideColumn(name, side),
  cell: (row) => {
    const [ratio, low, high] = [name, `${name}_low`, `${name}_high`].map((each) => sideColumn(each, side)[row]);
    return known(ratio) ? [times(ratio), subLine(known(low) ? intervalOf(low, high) : "")] : "–";
  },
});
const nameColumn = (note) => ({
  name: "label", head: "Case", text: true, values: cases.label,
  cell: (row) => [sides.length ? caseButton(row) : element("span", { class: "name" }, cases.label[row]), subLine(note?.[row])],
});

// Every case with each side's step, and what the others take and give beside the first.
const sidesTable = () => {
  const statusOf = (side, row) => sideColumn("status", side)?.[row] || "not measured";
  const latencies = sides.map(({ name }, side) => ({
    name: `step_time_s.${side}`, head: `${name}, ms`, values: sideColumn("step_time_s", side),
    cell: (row) => (known(sideColumn("step_time_s", side)[row]) ? say.ms(sideColumn("step_time_s", side)[row])
      : element("span", { class: "status bad" }, statusOf(side, row))),
  }));
  const two = others.length === 1;
  const titles = { ratio: "step", per_joule: "per joule", per_gb: "per GB" };
  const ratios = others.flatMap((side) => Object.entries(titles).filter(
    ([name]) => name === "ratio" || (two && sideColumn(name, side).some(known)),  // of more sides the table would be wide
  ).map(([name, title]) => ratioColumn(side, name, two ? title : `${sides[side].name}, times`)));
  const changes = others.filter((side) => two && sideColumn("change", side)).map((side) => ({
    name: `change.${side}`, head: `${sides[side].name} is`, text: true, values: sideColumn("change", side),
    cell: (row) => sideColumn("change", side)[row] || "–",
  }));
  const devices = cases.devices ? [{
    name: "devices", head: "Devices", text: true, values: cases.devices, cell: (row) => cases.devices[row],
  }] : [];
  return {
    initial: "", rows: selected,
    columns: [nameColumn(cases.reason), ...devices, ...latencies, ...ratios, ...changes],
    csv: () => Object.keys(cases).filter((name) => !["n", "work", "step_time_s", "mark"].includes(name)).map((name) => {
      const [column, side] = name.split(/\.(?=\d+$)/);
      return [side === undefined ? name : `${sides[side].name}: ${column}`, cases[name]];
    }),
  };
};

// Every case of a gate, with what became of it.
const gateTable = () => {
  const marked = (bad, text) => element("span", { class: bad ? "status bad" : "" }, text);
  return {
    initial: "", rows: selected,
    columns: [
      nameColumn(cases.note),
      {
        name: "outcome", head: "Outcome", text: true, values: cases.outcome,
        cell: (row) => element("span", { class: cases.bad[row] ? "status bad" : "status" }, cases.outcome[row]),
      },
      numberColumn("base_step_time_s", "Base ms", cases.base_step_time_s, say.ms),
      numberColumn("candidate_step_time_s", "Candidate ms", cases.candidate_step_time_s, say.ms),
      { name: "ratio", head: "Change", values: cases.ratio, cell: (row) => cases.change[row] || "–" },
      { name: "low", head: "95 % interval", values: cases.low, cell: (row) => cases.interval[row] || "–" },
      {
        name: "upper", head: "Upper bound", values: cases.upper,
        cell: (row) => marked(cases.open[row], cases.above[row] || "–"),
      },
      {
        name: "n_base", head: "Launches", values: cases.n_base,
        cell: (row) => `${say.whole(cases.n_base[row])}, ${say.whole(cases.n_candidate[row])}`,
      },
    ],
    csv: () => Object.keys(cases).filter((name) => !["n", "change", "interval", "above"].includes(name)).map((name) => [name, cases[name]]),
  };
};

// By the name that a section gives its table.
export const declared = { cases: casesTable, launches: launchesTable, sides: sidesTable, gate: gateTable };
