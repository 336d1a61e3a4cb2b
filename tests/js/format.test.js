// How numbers are said. tests/fixtures/formats.json holds what Python's filters say too (test_formats.py).
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { count, intervalOf, known, say, shortened, sizeText, times } from "../../reports/script/core/format.js";

for (const [name, value, said, ...of] of JSON.parse(readFileSync(new URL("../fixtures/formats.json", import.meta.url)))) {
  test(`${name} of ${value}`, () => assert.equal(say[name](value, ...of), said));
}

test("unknown is a dash, never 0", () => {
  for (const value of [null, undefined, NaN, Infinity]) {
    assert.equal(known(value), false);
    assert.equal(say.ms(value), "–");
  }
  assert.equal(known(0), true);
});

test("a ratio has two decimals where it is near 1, and ends that would read the same have more digits", () => {
  assert.deepEqual([0.834, 9.996, 12.34, 0.0567].map(times), ["0.83", "10.00", "12.3", "0.0567"]);
  assert.equal(intervalOf(0.83, 0.91), "0.83 to 0.91");
  assert.equal(intervalOf(0.8312, 0.8338), "0.831 to 0.834");
  assert.equal(intervalOf(0.83121, 0.83138), "0.8312 to 0.8314");
  assert.equal(intervalOf(1, 1), "1.00 to 1.00");
});

test("a size has the largest unit that leaves it whole", () => {
  assert.deepEqual([1, 1023, 1024, 1536, 2 ** 20, 3 * 2 ** 30].map(sizeText), ["1 B", "1023 B", "1 KiB", "1536 B", "1 MiB", "3 GiB"]);
});

test("a plural follows its noun", () => {
  assert.deepEqual(
    [count(1, "launch"), count(1200, "launch"), count(0, "case"), count(2, "box")], ["1 launch", "1,200 launches", "0 cases", "2 boxes"],
  );
});

test("a long name loses its middle", () => {
  assert.equal(shortened("abcdefghij", 10), "abcdefghij");
  assert.equal(shortened("abcdefghijk", 6), "abc…jk");
});
