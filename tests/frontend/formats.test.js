// Numbers, durations and sizes as pages show them.

import assert from "node:assert/strict";
import { test } from "node:test";

import { durationText, metricText, numberText, sizeText } from "../../det_keras/master/web/static/formats.js";

test("numbers have four digits, and keep what whole numbers are", () => {
  for (const [value, text] of [
    [null, "-"],
    [undefined, "-"],
    [0, "0"],
    [-0.5, "-0.5"],
    [0.123456, "0.1235"],
    [123456.789, "123500"],
    [0.00001234, "1.234e-05"],
    [1234567890123, "1234567890123"],
    ["adam", "adam"],
    [["a", 1], '["a",1]'],
  ])
    assert.equal(numberText(value), text);
});

test("a metric that happens to be whole is no count", () => {
  assert.equal(metricText(1), "1.0");
  assert.equal(metricText(0.25), "0.25");
  assert.equal(metricText(1e6), "1000000");
});

test("durations have their two largest units", () => {
  for (const [seconds, text] of [
    [-3, "0s"],
    [59.4, "59s"],
    [60, "1m 00s"],
    [3599.6, "1h 00m"],
    [90000, "1d 01h"],
  ])
    assert.equal(durationText(seconds), text);
});

test("sizes are of powers of 1024", () => {
  assert.equal(sizeText(1023), "1023B");
  assert.equal(sizeText(1536), "1.5KB");
  assert.equal(sizeText(3 * 1024 ** 4), "3.0TB");
});
