// Algorithm against bucket size: the step latency in each cell, the sweet-spot set outlined.
const cellsOf = (group) => {
  const sizes = bucketSizes(group);
  const algorithms = byAlgorithm(group).map(([name, all]) => [name, new Map(
    firstOfEach(all, "bucket_mib").map((row) => [cases.bucket_mib[row], row]),
  )]);
  return { sizes, names: algorithms.map(([name]) => name), cells: algorithms.map(([, of]) => sizes.map((mib) => of.get(mib) ?? null)) };
};

const LIGHTEST = 1.25;  // times the fastest cell: one slow algorithm must not make all others look alike
const heatPanel = ({ sizes, names, cells }) => {
  const each = (say) => cells.map((line) => line.map((row) => (row === null ? null : say(row))));
  const latencies = cells.flat().filter((row) => row !== null).map((row) => cases.latency_s[row] * 1e3);
  const fastest = Math.min(...latencies);
  const outlined = cells.flatMap((line, y) => line.map((row, x) => [row, x, y])).filter(([row]) => row !== null && cases.place[row]);
  return {
    traces: [{
      type: "heatmap", z: each((row) => cases.latency_s[row] * 1e3), customdata: each((row) => cases.case_id[row]),
      text: each((row) => say.ms(cases.latency_s[row])), texttemplate: "%{text}", hovertext: each(hoverOf),
      hovertemplate: "%{hovertext}<extra></extra>", hoverongaps: false, xgap: 2, ygap: 2, showscale: false,
      // Light enough throughout for black text, on light and dark pages alike.
      zmin: fastest, zmax: Math.min(Math.max(...latencies), LIGHTEST * fastest),
      colorscale: [[0, "#4FA8DD"], [1, "#F4F8FB"]], textfont: { color: "#111111", size: 12 },
    }],
    layout: laidOut("bucket size (MiB)", "", {
      xaxis: { tickvals: sizes.map((_, i) => i), ticktext: sizes.map(say.bucket), showgrid: false },
      yaxis: {
        tickvals: names.map((_, i) => i), ticktext: names.map((name) => cut(name, 20)), range: [names.length - 0.5, -0.5],
        showgrid: false,
      },
      shapes: outlined.map(([, x, y]) => ({
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
