// Tables as CSV files for spreadsheets (RFC 4180). Excel detects UTF-8 only by the byte order mark. Programs should read
// the results database instead.
import { element } from "../core/element.js";

// Text that a spreadsheet would read as a formula, also with full-width characters, gets an apostrophe. Numbers do not,
// also if they are negative.
const csvCell = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return String(value);
  const text = /^[=+\-@\t\r\n＝＋－＠]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const csvLine = (cells) => `${cells.map(csvCell).join(",")}\r\n`;

// `columns` are [head, values by index].
export const csvBlob = (columns, rows) => {
  const lines = [columns.map(([head]) => head), ...rows.map((i) => columns.map(([, values]) => values[i]))];
  return new Blob(["\uFEFF", ...lines.map(csvLine)], { type: "text/csv;charset=utf-8" });
};

export const download = (blob, name) => {
  const url = URL.createObjectURL(blob);
  const link = element("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60000);  // not before the browser has read it
};
export const fileName = (what) => {
  const name = document.title.replace(/ · parabench$/, "").replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-.]+/, "");
  return `${name || "parabench"}-${what}.csv`;
};
