// Actions on the chosen rows of a table: each changes those that it applies to.

import { ask, say, send } from "./actions.js";
import { isOver } from "./cells.js";
import { refreshSoon } from "./live.js";
import { request } from "./requests.js";

// Experiments or trials of one call.
const AT_ONCE = 1000;

const APPLIES = {
  pause: (state) => !isOver(state) && state !== "paused" && !state.startsWith("stopping"),
  activate: (state) => state === "paused",
  stop: (state) => !isOver(state) && !state.startsWith("stopping"),
  kill: (state) => !isOver(state),
  archive: isOver,
  delete: isOver,
  label: () => true,
  move: () => true,
  unarchive: () => true,
};

// The ids that an action applies to; `states` has the state of each chosen row.
function idsFor(action, states) {
  return [...states].filter(([, state]) => APPLIES[action](state)).map(([id]) => id);
}

// Shows the actions that apply to some chosen row, each with their number.
export function offerActions(buttons, states) {
  for (const button of buttons) {
    const count = idsFor(button.dataset.bulk, states).length;
    button.hidden = count === 0;
    button.textContent = `${button.dataset.word} ${count}`;
  }
}

export async function act(button, kind, states) {
  const { bulk, word, question, loss } = button.dataset;
  const ids = idsFor(bulk, states);
  const things = `${ids.length} ${kind}${ids.length === 1 ? "" : "s"}`;
  const fields = {};
  let label = "";
  if (bulk === "label") {
    label = await ask(`Label ${things}`, "", "Add", { input: "Label" });
    if (!label) return;
  } else if (bulk === "move") {
    const place = await ask(`Move ${things}`, "", "Move", { input: "Workspace/project" });
    if (!place) return;
    fields.destinationProjectId = await projectId(place);
    if (fields.destinationProjectId === undefined)
      return say(`There is no project ${place}: see the page of projects.`);
  } else if (question && !(await ask(question.replace("#", things), loss, word))) return;
  const failures = label ? await labelEach(ids, label) : await actOn(kind, bulk, ids, fields);
  const done = ids.length - failures.length;
  say(failures.length ? `${word}: ${done} of ${ids.length} done. ${failures.slice(0, 3).join(" ")}` : `${word}: done.`);
  refreshSoon();
}

// Sends one call for many rows; returns what was not done, and why.
async function actOn(kind, verb, ids, fields) {
  const isTrial = kind === "trial";
  const address = isTrial ? `/api/v1/runs/${verb}` : `/api/v1/projects/0/experiments/${verb}`;
  const failures = [];
  for (let start = 0; start < ids.length; start += AT_ONCE) {
    const part = ids.slice(start, start + AT_ONCE);
    const body = JSON.stringify({ [isTrial ? "runIds" : "experimentIds"]: part.map(Number), ...fields });
    try {
      const { results } = await send(address, { body });
      failures.push(...results.filter(({ error }) => error).map(({ id, error }) => `${id}: ${error}`));
    } catch (error) {
      failures.push(...part.map((id) => `${id}: ${error.message}`));
    }
  }
  return failures;
}

async function labelEach(ids, label) {
  const failures = [];
  for (const id of ids) {
    try {
      await send(`/api/v1/experiments/${id}/labels/${encodeURIComponent(label)}`, { method: "PUT" });
    } catch (error) {
      failures.push(`${id}: ${error.message}`);
    }
  }
  return failures;
}

// Returns the number of the project `workspace/project`; undefined if there is none.
async function projectId(place) {
  const { projects } = await (await request("/api/v1/workspaces/0/projects", {}, "Nothing was moved.")).json();
  return projects.find((project) => `${project.workspaceName}/${project.name}` === place)?.id;
}
