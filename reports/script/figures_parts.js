// Where a timed step's time goes; and of instrumented steps compute, and communication that is seen and hidden.
drawers.step_parts = (rows) => barPanels(
  "parts", rows, (row) => data.bars.parts.some(({ column }) => known(cases[column][row])),
  (group) => {
    const parts = data.bars.parts.filter(({ column }) => anyKnown(group, column));
    const whole = (row) => parts.reduce((sum, { column }) => sum + (cases[column][row] ?? 0), 0);
    return {
      traces: parts.map((part) => barOf(group, part, (row) => scaledBy(cases[part.column][row], 1e3), (row) => {
        const seconds = cases[part.column][row];
        return known(seconds) ? `${part.name}: ${say.ms(seconds)} ms, ${say.percent(seconds / whole(row))} of its parts` : "";
      })),
      layout: laidOut("median time of a step (ms)", "", {
        barmode: "stack", bargap: 0.35, legend: partsLegend, yaxis: nameAxis(group),
      }),
      height: barHeight(group, 110),
    };
  },
);

const EXPOSED = 2;  // its place among the shares; before it lie data and compute
const ROOM = 1.3;  // to the right of the longest bar, for its share

// What adds up to a step. Below it, thin, what of the communication is hidden: it lies inside compute, so it ends where
// the exposed part begins.
drawers.shares = (rows) => barPanels("shares", rows, (row) => known(cases.instrumented_s[row]), (group) => {
  const { shares } = data.bars;
  const before = (row, most) => shares.slice(0, most).reduce((sum, { column }) => sum + (cases[column][row] ?? 0), 0);
  const ms = (seconds) => scaledBy(seconds, 1e3);
  const said = (name, seconds, row, least = "") => (
    known(seconds) ? `${name}: ${least}${say.ms(seconds)} ms, ${say.percent(seconds / cases.instrumented_s[row])} of the step` : ""
  );
  const bars = shares.map((part, i) => barOf(
    group, part, (row) => ms(cases[part.column][row]), (row) => said(part.name, cases[part.column][row], row),
    { base: group.map((row) => ms(before(row, i))), y: group.map((_, place) => place - 0.08), width: 0.5 },
  ));
  const { color } = shares[EXPOSED];
  const hidden = barOf(
    group, { color, name: "hidden, inside compute" }, (row) => ms(cases.hidden_s[row]),
    (row) => said("hidden", cases.hidden_s[row], row, cases.unknown_calls[row] ? "≥ " : ""),
    {
      base: group.map((row) => ms(Math.max(0, before(row, EXPOSED) - (cases.hidden_s[row] ?? 0)))),
      y: group.map((_, place) => place + 0.3), width: 0.2,
      marker: {
        color, line: { width: 0 }, pattern: { shape: "/", size: 5, solidity: 0.45, fgcolor: color, bgcolor: "rgba(0,0,0,0)" },
      },
    },
  );
  const ends = group.map((row) => ms(before(row, shares.length)));
  const texts = {
    type: "scatter", mode: "text", x: ends, y: group.map((_, place) => place - 0.08), showlegend: false, hoverinfo: "skip",
    text: group.map((row) => ` ${known(cases.exposed_share[row]) ? say.percent(cases.exposed_share[row]) : "unknown"}`),
    textposition: "middle right",
  };
  return {
    traces: [...bars, hidden, texts], height: barHeight(group, 120),
    layout: laidOut("an instrumented step (ms)", "", {
      barmode: "overlay", legend: partsLegend, yaxis: nameAxis(group), xaxis: { range: [0, ROOM * Math.max(...ends)] },
    }),
  };
});
