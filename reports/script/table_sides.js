// The tables of pages of several sides. What Python has put into words stands in columns of its own.
const subLine = (text) => (text ? element("div", { class: "advice" }, text) : null);
const ratioColumn = (side, name, head) => ({
  name: `${name}.${side}`, head, values: of(name, side),
  cell: (row) => {
    const [ratio, low, high] = [name, `${name}_low`, `${name}_high`].map((each) => of(each, side)[row]);
    return known(ratio) ? [times(ratio), subLine(known(low) ? intervalOf(low, high) : "")] : "–";
  },
});
const nameColumn = (note) => ({
  name: "label", head: "Case", text: true, values: cases.label,
  cell: (row) => [sides.length ? caseButton(row) : element("span", { class: "name" }, cases.label[row]), subLine(note?.[row])],
});

// Every case with each side's step, and what the others take and give beside the first.
if (sides.length) {
  const statusOf = (side, row) => of("status", side)?.[row] || "not measured";
  const latencies = sides.map(({ name }, side) => ({
    name: `latency_s.${side}`, head: `${name}, ms`, values: of("latency_s", side),
    cell: (row) => (known(of("latency_s", side)[row]) ? say.ms(of("latency_s", side)[row])
      : element("span", { class: "status bad" }, statusOf(side, row))),
  }));
  const two = others.length === 1;
  const titles = { ratio: "step", per_joule: "per joule", per_gb: "per GB" };
  const ratios = others.flatMap((side) => Object.entries(titles).filter(
    ([name]) => name === "ratio" || (two && of(name, side).some(known)),  // of more sides the table would be wide
  ).map(([name, title]) => ratioColumn(side, name, two ? title : `${sides[side].name}, times`)));
  const changes = others.filter((side) => two && of("change", side)).map((side) => ({
    name: `change.${side}`, head: `${sides[side].name} is`, text: true, values: of("change", side),
    cell: (row) => of("change", side)[row] || "–",
  }));
  const devices = cases.devices ? [{
    name: "devices", head: "Devices", text: true, values: cases.devices, cell: (row) => cases.devices[row],
  }] : [];
  tables.sides = {
    initial: "", rows: selected,
    columns: [nameColumn(cases.reason), ...devices, ...latencies, ...ratios, ...changes],
    csv: () => Object.keys(cases).filter((name) => !["n", "work", "latency_s", "mark"].includes(name)).map((name) => {
      const [column, side] = name.split(/\.(?=\d+$)/);
      return [side === undefined ? name : `${sides[side].name}: ${column}`, cases[name]];
    }),
  };
}

// Every case of a gate, with what became of it.
if (tableThere("gate")) {
  const marked = (bad, text) => element("span", { class: bad ? "status bad" : "" }, text);
  tables.gate = {
    initial: "", rows: selected,
    columns: [
      nameColumn(cases.note),
      {
        name: "outcome", head: "Outcome", text: true, values: cases.outcome,
        cell: (row) => element("span", { class: cases.bad[row] ? "status bad" : "status" }, cases.outcome[row]),
      },
      numberColumn("base_s", "Base ms", cases.base_s, say.ms),
      numberColumn("candidate_s", "Candidate ms", cases.candidate_s, say.ms),
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
}
