// Algorithm against bucket size: the step latency in each cell, the sweet-spot set outlined.
const cellsOf = (group) => {
  const sizes = bucketSizes(group);
  const algorithms = byAlgorithm(group).map(([name, all]) => [name, new Map(
    firstOfEach(all, "bucket_mib").map((row) => [cases.bucket_mib[row], row]),
  )]);
  return { sizes, names: algorithms.map(([name]) => name), cells: algorithms.map(([, of]) => sizes.map((mib) => of.get(mib) ?? null)) };
};

// Light enough throughout for black text, on light and dark pages alike.
const [FAST, SLOW] = [[0x4f, 0xa8, 0xdd], [0xf4, 0xf8, 0xfb]];
const shade = (share) => `rgb(${FAST.map((from, i) => Math.round(from + share * (SLOW[i] - from))).join(",")})`;
const LIGHTEST = 1.25;  // times the fastest cell: one slow algorithm must not make all others look alike
// Cells are bars: plotly's basic bundle, a quarter of the whole, has no heat maps.
const heatPanel = ({ sizes, names, cells }) => {
  const filled = cells.flatMap((line, y) => line.map((row, x) => ({ row, x, y }))).filter(({ row }) => row !== null);
  const rows = filled.map(({ row }) => row);
  const latencies = rows.map((row) => cases.latency_s[row] * 1e3);
  const fastest = Math.min(...latencies);
  const slowest = Math.min(Math.max(...latencies), LIGHTEST * fastest);
  const outlined = filled.filter(({ row }) => cases.place[row]);
  return {
    traces: [{
      type: "bar", x: filled.map(({ x }) => x), base: filled.map(({ y }) => y - 0.47), y: filled.map(() => 0.94), width: 0.97,
      ids: rows.map((row) => cases.case_id[row]), text: rows.map((row) => say.ms(cases.latency_s[row])),
      textposition: "inside", insidetextanchor: "middle", textangle: 0, constraintext: "none",
      insidetextfont: { color: "#111111", size: 12 }, hovertext: rows.map(hoverOf), hovertemplate: "%{hovertext}<extra></extra>",
      marker: {
        color: latencies.map((ms) => shade(Math.min(1, (ms - fastest) / (slowest - fastest || 1)))), line: { width: 0 },
      },
    }],
    layout: laidOut("bucket size (MiB)", "", {
      barmode: "overlay",
      xaxis: { tickvals: sizes.map((_, i) => i), ticktext: sizes.map(say.bucket), showgrid: false },
      yaxis: {
        tickvals: names.map((_, i) => i), ticktext: names.map((name) => cut(name, 20)), range: [names.length - 0.5, -0.5],
        showgrid: false,
      },
      shapes: outlined.map(({ x, y }) => ({
        type: "rect", x0: x - 0.44, x1: x + 0.44, y0: y - 0.42, y1: y + 0.42, line: { color: "#111111", width: 2 },
      })),
    }),
  };
};

drawers.heat = (rows) => {
  const grids = [...byWorld(rows)].map(([key, group]) => ({ key, group, ...cellsOf(group) }));
  return mostFirst(
    grids.filter(({ sizes, names }) => sizes.length > 1 && names.length > 1),
    ({ cells }) => cells.flat().filter((row) => row !== null).length,
  ).map((grid) => lazily(
    { key: grid.key, title: `${worldTitle(grid.group[0])} (ms)`, height: 80 + 44 * grid.names.length }, () => heatPanel(grid),
  ));
};
