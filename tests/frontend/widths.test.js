// Widths of columns, as the address of a page holds them.

import assert from "node:assert/strict";
import { test } from "node:test";

import { widthsOf, widthsText } from "../../det_keras/master/web/static/widths.js";

test("widths come back from the address, also of names with colons", () => {
  const widths = new Map([
    ["val_loss", 120],
    ["a:b", 64],
  ]);
  assert.deepEqual(widthsOf(widthsText(widths)), widths);
});

test("what is no width is left out", () => {
  assert.deepEqual(widthsOf("a:wide,b:3,:70,c"), new Map());
  assert.deepEqual(widthsOf(""), new Map());
});
