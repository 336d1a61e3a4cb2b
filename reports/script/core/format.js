// Words of the page that depend on what is selected. Python formats all other numbers.
export const fixed = (n) => n.toLocaleString("en-US");
export const count = (n, thing) => `${fixed(n)} ${thing}${n === 1 ? "" : /(ch|sh|s|x)$/.test(thing) ? "es" : "s"}`;

// Without its middle: names of one module differ at their ends.
export const shortened = (text, most) => (text.length > most
  ? `${text.slice(0, Math.ceil((most - 1) / 2))}…${text.slice(-Math.floor((most - 1) / 2))}` : text);
