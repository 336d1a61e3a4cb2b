// Step latency against bucket size: a curve per algorithm, a panel for each work, strategy and world size.

// Where each bucket size stands on a log axis, PyTorch's default apart on the right.
const bucketPlaces = (sizes) => {
  const numbers = sizes.filter((mib) => mib !== null);
  const places = new Map(numbers.map((mib) => [mib, Math.log2(mib)]));
  const [low, high] = [Math.log2(numbers[0]), Math.log2(numbers.at(-1))];
  return places.set(null, high + Math.max(1, (high - low) / 5));
};

// Shaded: each run of neighbouring bucket sizes at which one of the rows that are drawn is in the sweet-spot set.
const inTheSet = (sizes, places, drawn) => {
  const inside = new Set(drawn.filter((row) => cases.place[row]).map((row) => cases.bucket_mib[row]));
  const bands = [];
  sizes.forEach((mib, i) => {
    if (!inside.has(mib)) return;
    if (i && inside.has(sizes[i - 1])) bands.at(-1).to = mib;
    else bands.push({ from: mib, to: mib });
  });
  return bands.map(({ from, to }) => ({
    type: "rect", layer: "below", yref: "paper", y0: 0, y1: 1, line: { width: 0 }, fillcolor: "rgba(107, 127, 147, 0.18)",
    x0: places.get(from) - 0.3, x1: places.get(to) + 0.3,
  }));
};

const bucketPanel = (group, sizes) => {
  const places = bucketPlaces(sizes);
  const algorithms = byAlgorithm(group).map(([name, all, style]) => [name, firstOfEach(all, "bucket_mib"), style]);
  const traces = algorithms.flatMap(([name, fastest, style], i) => {
    const aside = (i - (algorithms.length - 1) / 2) * 0.06;  // so that bars do not hide each other
    const draw = (own, showlegend) => ({
      ...pointsOf(own), name: cut(name), legendgroup: name, showlegend, mode: own.length > 1 ? "lines+markers" : "markers",
      x: own.map((row) => places.get(cases.bucket_mib[row]) + aside), y: own.map((row) => cases.latency_s[row] * 1e3),
      error_y: launchBars(own, inMs), line: { color: style.color, dash: style.dash },
      marker: { color: style.color, size: 9, symbol: own.map((row) => markOf(style, row)) },
    });
    const numbered = fastest.filter((row) => cases.bucket_mib[row] !== null);
    numbered.sort((a, b) => cases.bucket_mib[a] - cases.bucket_mib[b]);
    const unset = fastest.filter((row) => cases.bucket_mib[row] === null);
    return [[numbered, true], [unset, !numbered.length]].filter(([own]) => own.length).map(([own, shown]) => draw(own, shown));
  });
  const drawn = algorithms.flatMap(([, fastest]) => fastest);
  return {
    traces,
    layout: laidOut("bucket size (MiB)", "step latency (ms)", {
      xaxis: { tickvals: sizes.map((mib) => places.get(mib)), ticktext: sizes.map(say.bucket) },
      shapes: inTheSet(sizes, places, drawn),
    }),
  };
};

drawers.buckets = (rows) => {
  const groups = [...byWorld(rows)].map(([key, group]) => ({ key, group, sizes: bucketSizes(group) }));
  return mostFirst(groups.filter(({ sizes }) => sizes.length > 1), ({ sizes }) => sizes.length).map(
    ({ key, group, sizes }) => lazily({ key, title: worldTitle(group[0]), height: 380 }, () => bucketPanel(group, sizes)),
  );
};
