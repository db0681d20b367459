// What a person does with a session: open, say, stop, resume, discard.

import { Fault, ask, events, json, send } from "./api.js";
import { notice } from "./dom.js";
import { requestSettings } from "./settings.js";
import { emit, presentTurns, state } from "./state.js";

const STORED_CHECK_MS = 2_000;
/** Checks of an unstored turn after it was shown; then the page says so until it is opened again. */
const STORED_CHECKS = 60;
/** A stopped turn is released a moment after its connection. */
const RELEASE_CHECK_MS = 100;
const RELEASE_CHECKS = 50;

/** Counts what is put on the screen: an answer of the endpoint that comes after a newer step is not shown. */
let step = 0;
let onNoKey = () => {};

/** Names what happens when the endpoint refuses the key. */
export const whenKeyRefused = (work) => { onNoKey = work; };

/** Does something that may fail, and says how. */
export async function act(work) {
  try {
    return await work();
  } catch (fault) {
    if (fault.status === 401) onNoKey();
    else notice(fault.message, "bad");
  }
}

const addressOf = (id) => (id ? `/c/${id}` : "/");
const load = (id) => json(`/api/sessions/${id}?replaced=1`);

export async function refreshList() {
  state.listed = (await json("/api/sessions")).sessions;
  emit("list");
}

/** Leaves the conversation that is shown. An answer under way in it is stopped. */
function leave(id) {
  const running = state.running;
  state.running = null;
  running?.controller.abort();
  Object.assign(state, { current: id, shown: null, failure: "", leftOut: [], branchAfter: null, report: null });
  return ++step;
}

/** Opens a session, or with null a new one, and puts it into the address. */
export async function open(id, { push = true } = {}) {
  const here = leave(id);
  notice("");
  if (push && location.pathname !== addressOf(id)) history.pushState(null, "", addressOf(id));
  emit("session", { opened: true });
  const listing = refreshList();
  if (id) {
    try {
      const [shown] = await Promise.all([load(id), listing]);
      if (here !== step) return;
      state.shown = shown;
    } catch (fault) {
      if (here !== step) return;
      if (fault.status !== 404) throw fault;
      history.replaceState(null, "", "/");
      leave(null);
      emit("session", { opened: true });
      notice("This conversation is not on this device.", "bad");
      return;
    }
    emit("session", { opened: true });
    watchStored(here, STORED_CHECKS);
  }
  await listing;
}

/**
 * Sends messages and shows the answer as it comes.
 * @param {{ role: string, content: string }[]} messages
 * @param {{ replaces?: number, branch_after?: number }} place
 */
export async function say(messages, place = {}) {
  if (state.running) return;
  const pending = state.shown?.pending;
  const resumes = pending && JSON.stringify(pending) === JSON.stringify(messages);
  if (pending && !resumes) {
    state.leftOut.push({ after: presentTurns().length, messages: pending, text: state.shown.pending_text ?? "" });
  }
  const run = { session: state.current, messages, place, text: "", controller: new AbortController(), begun_ms: Date.now() };
  if (state.shown) state.shown.pending = null;
  Object.assign(state, { running: run, failure: "", report: null });
  notice("");
  step++;
  emit("session", { sent: true });
  let failure = "";
  try {
    await stream(run);
  } catch (fault) {
    if (fault.status === 401) onNoKey();
    failure = run.controller.signal.aborted ? "" : inWords(fault);
    if (fault.session) enter(run, fault.session);
  }
  // Another conversation may have been opened meanwhile.
  if (state.running !== run) return;
  state.running = null;
  state.failure = failure;
  await act(() => settle(run, failure));
}

async function stream(run) {
  if (!run.session) {
    run.session = (await json("/api/sessions", { method: "POST", signal: run.controller.signal })).id;
    enter(run, run.session);
  }
  const { system, ...settings } = requestSettings(state.shown);
  const body = { messages: [...system, ...run.messages], stream: true, ...settings, ...run.place };
  const response = await send("POST", "/v1/chat/completions", body, {
    signal: run.controller.signal, headers: { "x-baton-session": run.session },
  });
  const named = response.headers.get("x-baton-session");
  if (named && named !== run.session) enter(run, named);
  for await (const event of events(response)) {
    if (event.error) throw new Fault(502, event.error);
    run.text += event.choices?.[0]?.delta?.content ?? "";
    if (state.running === run) emit("stream");
  }
}

/** Shows the session that the endpoint began for this answer. */
function enter(run, id) {
  run.session = id;
  if (state.running !== run) return;
  state.current = id;
  history.replaceState(null, "", addressOf(id));
}

/** Shows the endpoint's state of the session after an answer, also after one that stopped or failed. */
async function settle(run, failure) {
  const here = step;
  if (!run.session) return restore(run);
  for (let tries = 0; tries < RELEASE_CHECKS; tries++) {
    try {
      const shown = await load(run.session);
      if (here !== step) return;
      state.shown = shown;
      if (!run.controller.signal.aborted || shown.pending || tries > 5) break;
    } catch (fault) {
      if (fault.status === 404) break;
      if (fault.status !== 409) throw fault;
    }
    await new Promise((done) => setTimeout(done, RELEASE_CHECK_MS));
    if (here !== step) return;
  }
  state.branchAfter = null;
  if (state.shown && !state.shown.turns.length && !state.shown.pending) return forget(run, failure);
  if (state.shown?.pending && !state.shown.pending_text) state.shown.pending_text = run.text;
  const last = run.messages.at(-1).content;
  const kept = state.shown?.pending ?? presentTurns().at(-1)?.messages ?? [];
  if (!kept.some((message) => message.content === last)) restore(run, failure);
  emit("session");
  await refreshList();
  watchStored(here, STORED_CHECKS);
}

/** Deletes the session of a message that the endpoint never had. */
async function forget(run, failure) {
  await ask(`/api/sessions/${run.session}`, { method: "DELETE" });
  history.replaceState(null, "", "/");
  await open(null, { push: false });
  restore(run, failure);
}

/** Puts a message that the endpoint does not have back into the box. */
function restore(run, failure = "") {
  emit("session");
  emit("draft", run.messages.at(-1).content);
  if (failure) notice(failure, "bad");
}

/** Looks again until all turns are in the store. */
function watchStored(here, checks) {
  if (!state.shown?.unstored || checks === 0) return;
  setTimeout(async () => {
    if (here !== step || state.running) return;
    const shown = document.hidden ? null : await load(state.shown.id).catch(() => null);
    if (here !== step || state.running) return;
    if (shown) {
      state.shown = { ...shown, pending_text: shown.pending_text || state.shown.pending_text };
      emit("session");
    }
    watchStored(here, checks - 1);
  }, STORED_CHECK_MS);
}

/** Stops the answer under way; its text stays. */
export const stop = () => state.running?.controller.abort();

/** Asks for the rest of the pending answer, unless another tab has it by now. */
export const resume = () => act(async () => {
  const here = step;
  const { pending, id } = state.shown;
  const shown = await load(id);
  if (here !== step || state.running) return;
  if (JSON.stringify(shown.pending) === JSON.stringify(pending)) return say(pending);
  state.shown = shown;
  state.failure = "";
  emit("session");
});

/** Gives up the pending message. A conversation without any answer is deleted with it. */
export const discard = () => act(async () => {
  const id = state.current;
  emit("draft", state.shown.pending.at(-1).content);
  if (!state.shown.turns.length) {
    await ask(`/api/sessions/${id}`, { method: "DELETE" });
    history.replaceState(null, "", "/");
    return open(null, { push: false });
  }
  await ask(`/api/sessions/${id}/abandon`, { method: "POST" });
  return open(id);
});

/** Asks again for the answer of a turn. */
export const regenerate = (turn) => act(() => say(turn.messages.slice(0, -1), { replaces: turn.seq }));

/** Replaces a turn, and all later ones, by an answer to another message. The history that begins a branch stays. */
export const replace = (turn, text) => act(() => say([...turn.messages.slice(0, -2), { role: "user", content: text }], { replaces: turn.seq }));

/** Begins a branch after a turn: the next message starts it. */
export function branchAfter(seq) {
  state.branchAfter = seq;
  emit("session");
}

/** Sends what was written, at the end or as the beginning of a branch. */
export function sendDraft(text) {
  const place = state.branchAfter === null ? {} : { branch_after: state.branchAfter };
  return act(() => say([{ role: "user", content: text }], place));
}

/** Deletes a session here and in the head index. */
export const remove = (id) => act(async () => {
  await ask(`/api/sessions/${id}`, { method: "DELETE" });
  if (id === state.current) {
    history.replaceState(null, "", "/");
    await open(null, { push: false });
  } else {
    await refreshList();
  }
  notice("Deleted.");
});

/** Gives a session its own title; none takes it away. */
export const rename = (id, title) => act(async () => {
  await send("PATCH", `/api/sessions/${id}`, { title: title || null });
  await refreshList();
  emit("session");
});

/** Checks every link, record, signature and blob of the session against the store. */
export const verify = () => act(async () => {
  notice("Checking every signature, receipt and stored copy…");
  const id = state.current;
  const report = await json(`/api/sessions/${id}/verify?full=true`, { method: "POST" });
  if (id !== state.current) return;
  state.report = { ...report, time_ms: Date.now() };
  emit("session");
  const wrong = report.problems.map((problem) => `turn ${problem.turn + 1}: ${problem.code}`).join(", ");
  if (report.good) notice("✓ All signatures, hashes and receipts match. The chain has the numbers.", "good");
  else notice(`Not as it was signed: ${wrong}`, "bad");
});

function inWords(fault) {
  if (fault.code === "no_node") return "No node was found.";
  return `${fault.message.charAt(0).toUpperCase()}${fault.message.slice(1)}`;
}
