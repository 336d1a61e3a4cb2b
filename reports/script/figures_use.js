// How much of the hardware is used, and the energy of a step.
const PREFIXES = ["", "k", "M", "G", "T", "P"];
const scaleOf = (largest) => {
  const power = largest > 0 ? Math.min(5, Math.max(0, Math.floor(Math.log10(largest) / 3))) : 0;
  return [10 ** (-3 * power), PREFIXES[power]];
};
const flopsSaid = (row) => {
  const [factor, prefix] = scaleOf(cases.flops_per_s[row]);
  return `${digits(cases.flops_per_s[row] * factor)} ${prefix}FLOP/s`;
};
const mfuSaid = (row) => (known(cases.mfu[row])
  ? `MFU ${digits(cases.mfu[row] * 100, 2)} %` : `MFU unknown: ${plain(cases.mfu_reason[row] ?? "")}`);

// The share of the devices' peak where it is known, else what they did.
drawers.usage = (rows) => barPanels("use", rows, (row) => known(cases.flops_per_s[row]), (group) => {
  const shared = anyKnown(group, "mfu");
  const column = shared ? "mfu" : "flops_per_s";
  const [factor, prefix] = shared ? [100, ""] : scaleOf(Math.max(...group.map((row) => cases[column][row] ?? 0)));
  return {
    traces: [barOf(
      group, { color: "#5F6CAF", name: "" }, (row) => scaledBy(cases[column][row], factor), (row) => `${flopsSaid(row)}<br>${mfuSaid(row)}`,
    )],
    height: barHeight(group, 90),
    layout: laidOut(shared ? "model FLOPs utilization (%)" : `${prefix}FLOP/s of all ranks`, "", {
      bargap: 0.35, showlegend: false, yaxis: nameAxis(group), xaxis: { rangemode: "tozero" },
    }),
  };
});

const joulesSaid = (joules) => {
  const [factor, unit] = [[1, "J"], [1e3, "mJ"]].find(([by]) => Math.abs(joules) * by >= 1) ?? [1e6, "µJ"];
  return `${digits(joules * factor)} ${unit}`;
};
drawers.energy = (rows) => barPanels("energy", rows, (row) => known(cases.joules_per_step[row]), (group) => ({
  traces: [barOf(
    group, { color: "#009E73", name: "" }, (row) => cases.joules_per_step[row],
    (row) => `${joulesSaid(cases.joules_per_step[row])} a step, `
      + `${joulesSaid(cases.joules_per_token[row])} a ${data.works[cases.work[row]].unit.replace(/s$/, "")}`,
  )],
  height: barHeight(group, 90),
  layout: laidOut("energy of a step (J)", "", {
    bargap: 0.35, showlegend: false, yaxis: nameAxis(group), xaxis: { rangemode: "tozero" },
  }),
}));
