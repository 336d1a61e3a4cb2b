// Format numbers that depend on the selected cases. Python formats all others.
export const fixed = (n) => n.toLocaleString("en-US");
export const count = (n, thing) => `${fixed(n)} ${thing}${n === 1 ? "" : /(ch|sh|s|x)$/.test(thing) ? "es" : "s"}`;

// Cut the middle out of a long text, because names from one module differ at their ends.
export const shortened = (text, most) => (text.length > most
  ? `${text.slice(0, Math.ceil((most - 1) / 2))}…${text.slice(-Math.floor((most - 1) / 2))}` : text);
