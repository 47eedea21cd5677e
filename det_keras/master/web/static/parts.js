// The answers that a live page shows. What is requested at about the same time goes to the master in one call, which
// returns what changed of each.

import { reasonOf, request } from "./requests.js";

const TOGETHER_MS = 30;
const MOST_PARTS = 60;
const MOST_KNOWN = 200;

// The text that was last received from an address, with the master's mark.
const known = new Map();
let waiting = [];

// Returns the text of an address. The first time it is requested alone, so that it does not wait for others, unless it is
// `live`; later it is compared with what is known. An error of a refusal has `isRefusal`.
export async function textOf(
  address,
  { next = "It is requested again when the master answers again.", live = false } = {},
) {
  if (!live && !known.has(address)) {
    const answer = await request(address, { headers: { "X-Mark": "1" } }, next);
    if (!answer.ok || answer.redirected) throw await refusal(answer);
    const text = await answer.text();
    remember(address, { mark: answer.headers.get("X-Mark") ?? "", text });
    return text;
  }
  return new Promise((resolve, reject) => {
    if (waiting.length === 0) setTimeout(sendAll, TOGETHER_MS);
    waiting.push({ address, next, resolve, reject });
  });
}

async function refusal(answer) {
  // The login has ended.
  if (answer.status === 401 || answer.redirected) location.reload();
  return refused(await reasonOf(answer));
}

const refused = (reason) => Object.assign(new Error(reason), { isRefusal: true });

function remember(address, one) {
  known.delete(address);
  known.set(address, one);
  if (known.size > MOST_KNOWN) known.delete(known.keys().next().value);
}

async function sendAll() {
  const all = waiting;
  waiting = [];
  const addresses = [...new Set(all.map(({ address }) => address))];
  for (let from = 0; from < addresses.length; from += MOST_PARTS) {
    const asked = new Set(addresses.slice(from, from + MOST_PARTS));
    await ask(
      [...asked],
      all.filter(({ address }) => asked.has(address)),
    );
  }
}

async function ask(addresses, askers) {
  const parts = addresses.map((address) => ({ address, have: known.get(address)?.mark ?? "" }));
  const headers = { "X-CSRF-Token": document.querySelector("meta[name=csrf-token]").getAttribute("content") };
  try {
    const answer = await request(
      "/live/parts",
      { method: "POST", headers, body: JSON.stringify({ parts }) },
      askers[0].next,
    );
    if (!answer.ok) throw await refusal(answer);
    const received = (await answer.json()).parts;
    const results = new Map(addresses.map((address, index) => [address, take(address, received[index])]));
    for (const { address, resolve, reject } of askers) {
      const { text, reason } = results.get(address);
      if (reason === undefined) resolve(text);
      else reject(refused(reason));
    }
  } catch (error) {
    for (const { reject } of askers) reject(error);
  }
}

// Returns the text of a received part, or why there is none.
function take(address, { status, mark, text, same, changes }) {
  if (status !== 200) return { reason: reasonIn(text, status) };
  const before = known.get(address)?.text ?? "";
  const now = same ? before : changes === undefined ? text : joined(before, changes);
  remember(address, { mark, text: now });
  return { text: now };
}

export const joined = (before, changes) =>
  changes.map((one) => (typeof one === "string" ? one : before.slice(one[0], one[1]))).join("");

function reasonIn(text, status) {
  try {
    const { error, message } = JSON.parse(text);
    return error?.error ?? message;
  } catch {
    return `The master refused: ${status}.`;
  }
}
