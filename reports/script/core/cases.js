// What the page says of a case wherever it is named.
import { cases } from "./data.js";
import { element } from "./element.js";
import { say } from "./format.js";
import { openCase } from "./state.js";

export const marginMs = (row) => say.beside_ms(cases.plus_minus_s[row], cases.step_time_s[row]);
// The ± of a throughput is as large a part of it as that of the step time.
export const marginRate = (row) => say.beside_rate(
  (cases.tokens_per_s[row] * cases.plus_minus_s[row]) / cases.step_time_s[row], cases.tokens_per_s[row],
);

export const statusTag = (status, bad = status !== "ok") => element("span", { class: bad ? "status bad" : "status" }, status);
const firstLine = (text, most = 120) => {
  const line = text.split("\n", 1)[0];
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
};
export const errorLine = (text) => (text ? element("div", { class: "error" }, firstLine(text)) : "");
export const caseButton = (row) => element(
  "button", { type: "button", class: "name", onclick: () => openCase(cases.case_id[row]) }, cases.label[row],
);
// What a case is called beside its name: fastest, tied, or not ranked.
export const tagsOf = (row) => [[cases.ranking[row], "tag"], [cases.mark[row], "tag plain"]].filter(([said]) => said).flatMap(
  ([said, name]) => [" ", element("span", { class: name }, said)],
);
export const subLine = (text) => (text ? element("div", { class: "advice" }, text) : null);
