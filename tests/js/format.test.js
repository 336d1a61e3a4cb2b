// Words that depend on what is selected.
import assert from "node:assert/strict";
import test from "node:test";

import { count, shortened } from "../../reports/script/core/format.js";

test("a plural follows its noun", () => {
  assert.deepEqual(
    [count(1, "launch"), count(1200, "launch"), count(0, "case"), count(2, "box")], ["1 launch", "1,200 launches", "0 cases", "2 boxes"],
  );
});

test("a long name loses its middle", () => {
  assert.equal(shortened("abcdefghij", 10), "abcdefghij");
  assert.equal(shortened("abcdefghijk", 6), "abc…jk");
});
