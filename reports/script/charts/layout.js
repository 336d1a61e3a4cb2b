// The style of figures: the colors of the page, axes, and the names of rows.
import { shortened } from "../core/format.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isAxis = (key) => /^[xy]axis\d*$/.test(key);

// On a phone, a long legend has two columns and a small font. One column would be as tall as the figure.
export const onPhone = () => innerWidth < 600 && !document.documentElement.dataset.print;
const MOST_NAMES = 6;
const COLUMNS = { entrywidth: 0.48, entrywidthmode: "fraction", font: { size: 10 } };
const inLegend = (traces) => traces.filter(({ showlegend }) => showlegend !== false).length;
const hasColumns = (traces) => onPhone() && inLegend(traces) > MOST_NAMES;
export const legendLines = (traces) => Math.ceil(inLegend(traces) / (hasColumns(traces) ? 2 : 1));
export const withShortNames = (traces) => (hasColumns(traces)
  ? traces.map((trace) => ({ ...trace, name: shortened(trace.name ?? "", 22) })) : traces);

// Return the layout with the style of all figures: legend, margins, and text and grid in the colors of the page, so that a
// figure is readable in light and dark mode and in print.
export const themed = (layout, traces = []) => {
  const [ink, line, wash] = [colour("--ink"), colour("--line"), colour("--wash")];
  const font = { family: getComputedStyle(document.body).fontFamily, color: ink };
  const dressed = {
    margin: { l: 8, r: 20, t: 8, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
    ...layout, dragmode: false, font: { size: 13, ...layout.font, ...font },
    hoverlabel: { bgcolor: wash, bordercolor: line, font: { ...font }, align: "left" },
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", ...layout.legend, ...(hasColumns(traces) ? COLUMNS : {}) },
  };
  for (const key of Object.keys(layout).filter(isAxis)) {
    dressed[key] = {
      // An axis changes only the margin on its side. If the last label of the x axis also moved the right edge, other
      // labels could result, and plotly would alternate between the two layouts.
      automargin: key.startsWith("x") ? "height" : "width", zeroline: false, ...layout[key],
      ...(key.startsWith("y") && layout[key].ticktext ? { ticktext: layout[key].ticktext.map((text) => nameLines(text).join("<br>")) } : {}),
      title: { standoff: 10, font: { size: 13 }, ...layout[key].title, text: titleOf(layout[key].title?.text ?? "") },
      // On a touch screen a drag must scroll the page, not the axes.
      fixedrange: true, gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line,
    };
  }
  return dressed;
};

// The characters in a line of a row name. On a phone the figure needs the space.
const lineLength = () => (innerWidth >= 1000 || document.documentElement.dataset.print ? 44 : 24);

// Return a text in lines of at most `length` characters. If there are too many lines, those before the last are left out,
// because names differ at their ends.
const wrapped = (text, length, most) => {
  const lines = [""];
  for (const word of text.split(" ").map((each) => shortened(each, length))) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= length) lines.push("");
    lines[lines.length - 1] += (lines.at(-1) ? " " : "") + word;
  }
  return lines.length > most ? [...lines.slice(0, most - 2), `${lines[most - 2]} …`, lines.at(-1)] : lines;
};
const titleOf = (text) => (onPhone() ? wrapped(text, 24, 3).join("<br>") : text);
// Return the name of a case in short lines: one line if it fits, or else strategy and options, then ranks and the rest.
export const nameLines = (label) => {
  const length = lineLength();
  const at = label.indexOf(", ");
  if (label.length <= length || at < 0) return wrapped(label, length, 3);
  return [...wrapped(label.slice(0, at + 1), length, 3), ...wrapped(label.slice(at + 2), length, 2)];
};
