// Requests to the endpoint that serves this page, or to a client in the page.
//
// The key is saved for this device, in the storage of this origin. A cookie would go to every port of the host, so to
// other programs of the machine, and pages on those ports could use it.

const savedKey = () => localStorage.getItem("key") ?? sessionStorage.getItem("key") ?? "";

/** Saves the key: on this device, or for this tab alone. */
function saveKey(given, stays) {
  localStorage.removeItem("key");
  (stays ? localStorage : sessionStorage).setItem("key", given);
}

/** The key: from the link's fragment, which no server sees, or the saved one. */
function takeKey() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given) {
    saveKey(given, true);
    history.replaceState(null, "", location.pathname);
  }
  return savedKey();
}

let key = takeKey();

export const hasKey = () => key !== "";

export function setKey(given, stays) {
  key = given;
  saveKey(given, stays);
}

/** Removes the key and all settings of this page from the browser. Other tabs follow. */
export function signOut() {
  localStorage.clear();
  sessionStorage.clear();
  location.replace("/");
}

/** Begins anew where a link or another tab changed the key. */
export function watchKey() {
  const follow = () => { if (!direct && savedKey() !== key) location.reload(); };
  addEventListener("storage", follow);
  // A page that the browser had put aside hears of no change.
  addEventListener("pageshow", follow);
  // A link that is opened in this tab loads nothing by itself.
  addEventListener("hashchange", () => { if (location.hash.includes("key=")) location.reload(); });
}

/** The client in this page, where only files are served. @type {import("./direct.js").DirectClient | null} */
export let direct = null;

/** Finds out what answers: the endpoint that served this page, or a client in it. */
export async function connect() {
  if (direct) return;
  const answer = await fetch("/access").catch(() => null);
  // A server of files has no such file, or sends the page itself.
  if (!answer || answer.headers.get("content-type")?.startsWith("application/json")) return;
  // The endpoint serves no such script: then a proxy before it answered, and the next request says what is wrong.
  const module = await import("./direct.js").catch(() => null);
  direct = await module?.openClient() ?? null;
}

/** An error of the endpoint. */
export class Fault extends Error {
  constructor(status, error, session = null) {
    super(error?.message ?? `The endpoint answered ${status}.`);
    this.status = status;
    this.code = error?.code ?? "";
    /** The session of the turn that failed. */
    this.session = session;
  }
}

/** @returns {Promise<Response>} */
export async function ask(path, options = {}) {
  const headers = { ...(key && { authorization: `Bearer ${key}` }), ...options.headers };
  let response;
  try {
    response = await (direct ?? globalThis).fetch(path, { ...options, headers });
  } catch (error) {
    if (direct || error.name === "AbortError") throw error;
    throw new Fault(0, { message: "baton serve does not answer. Is it running?", code: "unreachable" });
  }
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new Fault(response.status, body?.error, response.headers.get("x-baton-session"));
  }
  return response;
}

export const json = async (path, options) => (await ask(path, options)).json();

/** Sends a JSON body. */
export const send = (method, path, body, options = {}) => ask(path, {
  ...options, method, body: JSON.stringify(body), headers: { "content-type": "application/json", ...options.headers },
});

/** Whether the endpoint admits this tab: with the right key, or without one where none is needed. */
export const admitted = async () => (await json("/access")).admitted;

/** Reads server-sent events. @param {Response} response */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}
