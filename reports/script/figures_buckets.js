// Step latency against bucket size: a curve per algorithm, a panel for each work, strategy and world size.
const nativeFirst = Object.keys(data.styles?.algorithm || {});  // the order in which Python lists them
const titled = (row, ...parts) => [data.works[cases.work[row]].name, ...parts].filter(Boolean).join(" · ");
const measured = (rows) => rows.filter((row) => known(cases.latency_s[row]));
const byWorld = (rows) => groupBy(
  measured(rows), (row) => JSON.stringify([cases.work[row], cases.strategy[row], cases.world_size[row]]),
);
const worldTitle = (row) => titled(row, `${cases.strategy[row]}, ${count(cases.world_size[row], "rank")}`);

// Where each bucket size stands on a log axis, PyTorch's default apart on the right.
const bucketPlaces = (rows) => {
  const sizes = distinct(rows.map((row) => cases.bucket_mib[row])).filter((mib) => mib !== null).sort((a, b) => a - b);
  const places = new Map(sizes.map((mib) => [mib, Math.log2(mib)]));
  const [low, high] = [Math.log2(sizes[0]), Math.log2(sizes.at(-1))];
  places.set(null, high + Math.max(1, (high - low) / 5));
  return places;
};

drawers.buckets = (rows) => [...byWorld(rows)].flatMap(([key, group]) => {
  const sizes = distinct(group.map((row) => cases.bucket_mib[row]));
  if (sizes.length < 2) return [];
  const places = bucketPlaces(group);
  const algorithms = groupBy(group, (row) => cases.algorithm[row]);
  const names = nativeFirst.filter((name) => algorithms.has(name));
  const traces = names.flatMap((name, i) => {
    const aside = (i - (names.length - 1) / 2) * 0.06;  // so that error bars do not hide each other
    // Where cases differ in more than the bucket, the fastest stands for it: rows come fastest first.
    const fastest = [...groupBy(algorithms.get(name), (row) => cases.bucket_mib[row]).values()].map(([first]) => first);
    const style = data.styles.algorithm[name];
    const draw = (own, showlegend) => ({
      type: "scatter", name: plain(name), legendgroup: name, showlegend, mode: own.length > 1 ? "lines+markers" : "markers",
      x: own.map((row) => places.get(cases.bucket_mib[row]) + aside),
      y: own.map((row) => cases.latency_s[row] * 1e3),
      error_y: {
        type: "data", symmetric: false, thickness: 1.2, width: 4,
        array: own.map((row) => (cases.high_s[row] - cases.latency_s[row]) * 1e3),
        arrayminus: own.map((row) => (cases.latency_s[row] - cases.low_s[row]) * 1e3),
      },
      ids: own.map((row) => cases.case_id[row]), text: own.map(hoverOf), hovertemplate: "%{text}<extra></extra>",
      line: { color: style.color, dash: style.dash }, marker: { color: style.color, size: 8, symbol: style.symbol },
    });
    const numbered = fastest.filter((row) => cases.bucket_mib[row] !== null);
    numbered.sort((a, b) => cases.bucket_mib[a] - cases.bucket_mib[b]);
    const unset = fastest.filter((row) => cases.bucket_mib[row] === null);
    return [[numbered, true], [unset, !numbered.length]].filter(([own]) => own.length).map(([own, shown]) => draw(own, shown));
  });
  const shown = sizes.filter((mib) => mib !== null).sort((a, b) => a - b).concat(sizes.includes(null) ? [null] : []);
  return [{
    key, title: worldTitle(group[0]), traces, height: 380,
    layout: laidOut("bucket size (MiB)", "step latency (ms)", {
      xaxis: { tickvals: shown.map((mib) => places.get(mib)), ticktext: shown.map(say.bucket) },
      shapes: inTheSet(group, places),
    }),
  }];
});

// The sweet-spot set, shaded: over the bucket sizes of each run of neighbours in it.
const inTheSet = (group, places) => {
  const sizes = distinct(group.map((row) => cases.bucket_mib[row]));
  sizes.sort((a, b) => places.get(a) - places.get(b));
  const inside = new Set(group.filter((row) => cases.place[row]).map((row) => cases.bucket_mib[row]));
  const bands = [];
  let last = null;
  for (const mib of sizes) {
    if (inside.has(mib)) {
      if (last === null) bands.push((last = { from: mib, to: mib }));
      else last.to = mib;
    } else last = null;
  }
  return bands.map(({ from, to }) => ({
    type: "rect", layer: "below", yref: "paper", y0: 0, y1: 1, line: { width: 0 }, fillcolor: "rgba(0, 158, 115, 0.13)",
    x0: places.get(from) - 0.3, x1: places.get(to) + 0.3,
  }));
};
