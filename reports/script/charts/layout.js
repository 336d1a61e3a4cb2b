// The look of figures: the page's colours, axes, and names beside bars.
import { shortened } from "../core/format.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isAxis = (key) => /^[xy]axis\d*$/.test(key);

// On a phone, a legend of many names has two columns of small names: one column would be as tall as the figure.
export const onPhone = () => innerWidth < 600 && !document.documentElement.dataset.print;
const MOST_NAMES = 6;
const COLUMNS = { entrywidth: 0.48, entrywidthmode: "fraction", font: { size: 10 } };
const inLegend = (traces) => traces.filter(({ showlegend }) => showlegend !== false).length;
const hasColumns = (traces) => onPhone() && inLegend(traces) > MOST_NAMES;
export const legendLines = (traces) => Math.ceil(inLegend(traces) / (hasColumns(traces) ? 2 : 1));
export const withShortNames = (traces) => (hasColumns(traces)
  ? traces.map((trace) => ({ ...trace, name: shortened(trace.name ?? "", 22) })) : traces);

// The look of every figure: where legend and margins are; text and grid in the page's colours, so
// that one figure reads in light, dark and print.
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
      // An axis makes room on its own side alone: were the last label of the x axis to move the right edge too, other
      // labels could come of it, and plotly would go to and fro between the two.
      automargin: key.startsWith("x") ? "height" : "width", zeroline: false, ...layout[key],
      ...(key.startsWith("y") && layout[key].ticktext ? { ticktext: layout[key].ticktext.map((text) => nameLines(text).join("<br>")) } : {}),
      title: { standoff: 10, font: { size: 13 }, ...layout[key].title, text: titleOf(layout[key].title?.text ?? "") },
      // On a touch screen a drag must scroll the page, not the axes.
      fixedrange: true, gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line,
    };
  }
  return dressed;
};

// Characters in a line of a name beside a figure: on a phone the figure needs the room.
const lineLength = () => (innerWidth >= 1000 || document.documentElement.dataset.print ? 44 : 24);

// Words in lines of at most so many characters. Of too many lines those before the last go: names differ at their ends.
const wrapped = (text, length, most) => {
  const lines = [""];
  for (const word of text.split(" ").map((each) => shortened(each, length))) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= length) lines.push("");
    lines[lines.length - 1] += (lines.at(-1) ? " " : "") + word;
  }
  return lines.length > most ? [...lines.slice(0, most - 2), `${lines[most - 2]} …`, lines.at(-1)] : lines;
};
const titleOf = (text) => (onPhone() ? wrapped(text, 24, 3).join("<br>") : text);
// A case's name in short lines: on one, or else strategy and options, then ranks and what else there is to say.
export const nameLines = (label) => {
  const length = lineLength();
  const at = label.indexOf(", ");
  if (label.length <= length || at < 0) return wrapped(label, length, 3);
  return [...wrapped(label.slice(0, at + 1), length, 3), ...wrapped(label.slice(at + 2), length, 2)];
};
