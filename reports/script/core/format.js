// How numbers are said; the rules are those of parabench/analysis/format.py. Unknown is a dash, never 0.
export const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

const decimals = (value, significant = 3) => {
  if (!value) return 0;
  const exponent = Number(value.toExponential(significant - 1).split("e")[1]);  // of the rounded value: 9.999 is 10.0
  return Math.max(0, significant - 1 - exponent);
};
const formats = new Map();
export const fixed = (value, places) => {
  if (!formats.has(places)) {
    formats.set(places, new Intl.NumberFormat("en-US", { minimumFractionDigits: places, maximumFractionDigits: places }));
  }
  return formats.get(places).format(value);
};
const digits = (value, significant = 3) => fixed(value, Math.min(20, decimals(value, significant)));

// As many decimals as the number has, or one digit where that shows 0; but no more than two further ones.
const beside = (margin, of) => {
  const most = decimals(of) + 2;
  if (!margin || decimals(margin, 1) > most) return `<${fixed(10 ** -most, Math.min(20, most))}`;
  return fixed(margin, Math.max(decimals(of), decimals(margin, 1)));
};
const percent = (fraction, plus) => {
  const [size, sign] = [Math.abs(fraction) * 100, fraction < 0 ? "−" : plus];
  if (size > 0 && size < 0.01) return "<0.01%";
  if (size > 1000) return `${fraction < 0 ? "<" : ">"}${sign}1,000%`;
  if (size > 0 && size < 0.05) return `${sign}${digits(size, 1)}%`;
  return `${sign}${fixed(size, size >= 9.95 ? 0 : 1)}%`;
};

const orDash = (say) => (value, ...more) => (known(value) ? say(value, ...more) : "–");
export const say = {
  digits: orDash((value) => digits(value)),
  ms: orDash((seconds) => digits(seconds * 1e3)),
  us: orDash((seconds) => digits(seconds * 1e6)),
  seconds: orDash((seconds) => `${digits(seconds)} s`),
  mib: orDash((bytes) => digits(bytes / 2 ** 20)),
  count: orDash((value) => fixed(value, 0)),
  rate: orDash((value) => digits(Number(value.toPrecision(3)))),
  percent: orDash((fraction) => percent(fraction, "")),
  signed: orDash((fraction) => percent(fraction, "+")),
  beside_ms: orDash((seconds, of) => beside(seconds * 1e3, of * 1e3)),
  beside_rate: orDash((margin, of) => (margin >= 100 ? say.rate(margin) : beside(margin, of))),
};

export const count = (n, thing) => `${fixed(n, 0)} ${thing}${n === 1 ? "" : /(ch|sh|s|x)$/.test(thing) ? "es" : "s"}`;

// Ratios as numbers: 0.83, 12.3.
export const times = (ratio) => (ratio >= 0.1 && ratio < 10 ? fixed(ratio, 2) : digits(ratio));
// With more digits where both ends would read the same.
export const intervalOf = (low, high) => {
  const said = [times, digits, (ratio) => digits(ratio, 4)].map((one) => [one(low), one(high)]);
  return (said.find(([from, to]) => from !== to) || said[0]).join(" to ");
};
const SIZE_UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
export const sizeText = (bytes) => {
  const [unit, size] = SIZE_UNITS.find(([, of]) => bytes >= of && bytes % of === 0) || ["B", 1];
  return `${bytes / size} ${unit}`;
};

// Without its middle: the names of a user's own are often of one module, and differ at their ends.
export const shortened = (text, most) => (text.length > most
  ? `${text.slice(0, Math.ceil((most - 1) / 2))}…${text.slice(-Math.floor((most - 1) / 2))}` : text);
