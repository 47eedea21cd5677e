// Actions on the chosen rows of a table: each changes those that it applies to.

import { ask, say, send } from "./actions.js";
import { isOver } from "./cells.js";
import { refreshSoon } from "./live.js";
import { request } from "./requests.js";

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
  const { bulk, word, question, loss, method = "POST" } = button.dataset;
  const ids = idsFor(bulk, states);
  const things = `${ids.length} ${kind}${ids.length === 1 ? "" : "s"}`;
  /** @type {{ path: string, method: string, body?: string }} */
  let call = { path: bulk === "delete" ? "" : `/${bulk}`, method };
  if (bulk === "label") {
    const label = await ask(`Label ${things}`, "", "Add", { input: "Label" });
    if (!label) return;
    call = { path: `/labels/${encodeURIComponent(label)}`, method: "PUT" };
  } else if (bulk === "move") {
    const place = await ask(`Move ${things}`, "", "Move", { input: "Workspace/project" });
    if (!place) return;
    const destinationProjectId = await projectId(place);
    if (destinationProjectId === undefined) return say(`There is no project ${place}: see the page of projects.`);
    call = { path: "/move", method, body: JSON.stringify({ destinationProjectId }) };
  } else if (question && !(await ask(question.replace("#", things), loss, word))) return;
  const failures = [];
  for (const id of ids) {
    try {
      await send(`/api/v1/${kind}s/${id}${call.path}`, call);
    } catch (error) {
      failures.push(`${id}: ${error.message}`);
    }
  }
  const done = ids.length - failures.length;
  say(failures.length ? `${word}: ${done} of ${ids.length} done. ${failures.slice(0, 3).join(" ")}` : `${word}: done.`);
  refreshSoon();
}

// Returns the number of the project `workspace/project`; undefined if there is none.
async function projectId(place) {
  const { projects } = await (await request("/api/v1/workspaces/0/projects", {}, "Nothing was moved.")).json();
  return projects.find((project) => `${project.workspaceName}/${project.name}` === place)?.id;
}
