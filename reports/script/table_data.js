// The tables of all cases and of all launches: their columns, and those of their files.
const numberColumn = (name, head, values, said) => ({ name, head, values, cell: (i) => said(values[i]) });
const statusTag = (status) => element("span", { class: status === "ok" ? "status" : "status bad" }, status);
const firstLine = (text, most = 120) => {
  const line = text.split("\n", 1)[0];
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
};
const errorLine = (text) => (text ? element("div", { class: "error" }, firstLine(text)) : "");
const caseButton = (row) => element(
  "button", { type: "button", class: "name", onclick: () => openCase(cases.case_id[row]) }, cases.label[row],
);
// What a case is called beside its name: fastest, or no answer.
const tagsOf = (row) => [[cases.place[row], "tag"], [cases.mark[row], "tag plain"]].filter(([said]) => said).flatMap(
  ([said, name]) => [" ", element("span", { class: name }, said)],
);
// As many decimals as the number has, or one digit where that shows 0; but no more than two further ones.
const besides = (margin, of) => {
  const most = decimals(of) + 2;
  if (decimals(margin, 1) > most) return `less than ${fixed(10 ** -most, Math.min(20, most))}`;
  return fixed(margin, Math.max(decimals(of), decimals(margin, 1)));
};
const marginMs = (row) => besides(cases.plus_minus_s[row] * 1e3, cases.latency_s[row] * 1e3);
// The ± of a throughput is as large a part of it as that of the latency.
const marginRate = (row) => {
  const margin = (cases.tokens_per_s[row] * cases.plus_minus_s[row]) / cases.latency_s[row];
  return margin >= 100 ? say.rate(margin) : besides(margin, cases.tokens_per_s[row]);
};
const unitsOf = () => {
  const said = distinct(data.works.map(({ unit }) => unit)).join(" or ");
  return said.charAt(0).toUpperCase() + said.slice(1);
};

// Every launch, those of no case in the tables last: references and what explains.
const every = (() => {
  if (!data.apart) return { n: 0 };
  const apart = unpack(data.apart);
  const column = (name) => (launches[name] || []).concat(apart[name] || []);
  const ran = { n: launches.n + apart.n };
  for (const name of Object.keys(launches)) if (name !== "n") ran[name] = column(name);
  for (const name of ["case_id", "label"]) {
    ran[name] = (launches.case || []).map((row) => cases[name][row]).concat(apart[name] || []);
  }
  return ran;
})();
// The rows of `every`, as they ran: those of no case only where nothing is filtered.
const asTheyRan = sortedBy(
  Array.from({ length: every.n }, (_, i) => i), { values: every.launch_id || [] }, false,
);
const BLOCKS = { "-1": "reference", "-2": "explaining" };
const blockName = (block) => BLOCKS[block] || String(block);

const tableThere = (name) => Boolean(document.querySelector(`[data-table=${name}]`));

if (tableThere("cases")) {
  const margin = cases.plus_minus_s.some(known)
    ? [{
      name: "plus_minus_s", head: "± ms", values: cases.plus_minus_s,
      cell: (row) => (known(cases.plus_minus_s[row]) ? marginMs(row) : "–"),
    }] : [];
  tables.cases = {
    initial: "latency_s",
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
      numberColumn("latency_s", "Step ms", cases.latency_s, say.ms),
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
}
// Heads of columns that are called otherwise, or less exactly, inside of the page.
const CSV_HEADS = {
  latency_s: "step_s", low_s: "step_fastest_launch_s", high_s: "step_slowest_launch_s", p90_s: "step_p90_s",
  plus_minus_s: "step_plus_minus_s", number_s: "step_s", tokens_per_s: "throughput_per_s",
};

if (tableThere("launches")) {
  tables.launches = {
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
      numberColumn("number_s", "Step ms", every.number_s, say.ms),
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
}
