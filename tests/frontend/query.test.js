// The language of filters of walls; `det_keras/master/table/filters.py` has it for tables, with the same cases.

import assert from "node:assert/strict";
import { test } from "node:test";

import { matcher } from "../../det_keras/master/web/static/query.js";

const RUNS = [
  { name: "run 1", state: "completed", labels: ["asha"], optimizer: "adam", "net.lr": 0.01, acc: 0.9 },
  { name: "run 2", state: "error", labels: [], optimizer: "sgd", "net.lr": 0.1, acc: null },
  { name: "run 10", state: "running", labels: ["asha", "team"], optimizer: "adamw", "net.lr": 0.001, acc: 0.5 },
];

function found(query) {
  const matches = matcher(query, {
    fields: ({ labels, ...rest }) => ({ ...rest, label: labels }),
    text: (run) => `${run.name} ${run.labels.join(" ")}`,
  });
  return RUNS.filter(matches).map(({ name }) => name);
}

for (const [query, names] of [
  ["", ["run 1", "run 2", "run 10"]],
  ["acc>.8", ["run 1"]],
  ["optimizer=adam", ["run 1"]],
  ["optimizer:adam", ["run 1", "run 10"]],
  ["optimizer!=adam", ["run 2", "run 10"]],
  ["lr<=1e-2", ["run 1", "run 10"]],
  ["label:asha", ["run 1", "run 10"]],
  ["label!=asha", ["run 2"]],
  ["acc!=0.9", ["run 2", "run 10"]],
  ["ASHA run", ["run 1", "run 10"]],
  ['"run 1" state=completed', ["run 1"]],
  ["unknown>1", []],
])
  test(`filter ${query || "without terms"}`, () => assert.deepEqual(found(query), names));
