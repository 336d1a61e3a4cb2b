// How numbers are said; the rules are those of parabench/analysis/text/format.py. Unknown is a dash, never 0.
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

const decimals = (value, significant = 3) => {
  if (!value) return 0;
  const exponent = Number(value.toExponential(significant - 1).split("e")[1]);  // of the rounded value: 9.999 is 10.0
  return Math.max(0, significant - 1 - exponent);
};
const formats = new Map();
const fixed = (value, places) => {
  if (!formats.has(places)) {
    formats.set(places, new Intl.NumberFormat("en-US", { minimumFractionDigits: places, maximumFractionDigits: places }));
  }
  return formats.get(places).format(value);
};
const digits = (value, significant = 3) => fixed(value, Math.min(20, decimals(value, significant)));

const orDash = (say) => (value) => (known(value) ? say(value) : "–");
const say = {
  digits: orDash(digits),
  ms: orDash((seconds) => digits(seconds * 1e3)),
  us: orDash((seconds) => digits(seconds * 1e6)),
  seconds: orDash((seconds) => `${digits(seconds)} s`),
  mib: orDash((bytes) => digits(bytes / 2 ** 20)),
  whole: orDash((value) => fixed(value, 0)),
  rate: orDash((value) => digits(Number(value.toPrecision(3)))),
  percent: orDash((fraction) => {
    const size = Math.abs(fraction) * 100;
    if (size > 0 && size < 0.01) return "less than 0.01 %";
    if (size > 1000) return "more than 1,000 %";
    const sign = fraction < 0 ? "−" : "";
    if (size > 0 && size < 0.05) return `${sign}${digits(size, 1)} %`;
    return `${sign}${fixed(size, size >= 9.95 ? 0 : 1)} %`;
  }),
  bucket: (mib) => (mib === null ? "default" : String(mib)),
};

// Plotly reads a few HTML tags in text; these must not be any.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const count = (n, thing) => `${fixed(n, 0)} ${thing}${n === 1 ? "" : /(ch|sh|s|x)$/.test(thing) ? "es" : "s"}`;

// What hovering says of a case, whatever figure it is in.
const hoverOf = (row) => [
  `<b>${plain(cases.label[row])}</b>`,
  `${say.ms(cases.latency_s[row])}${known(cases.plus_minus_s?.[row]) ? ` ± ${marginMs(row)}` : ""} ms a step (${cases.statistic[row]})`,
  known(cases.spread[row]) ? `slowest launch over fastest: +${say.percent(cases.spread[row])}` : "spread unknown: one launch",
  `${cases.n_ok[row]} of ${count(cases.n_launches[row], "launch")} ok`,
].join("<br>");
