// What a person does with a session: open, say, stop, resume, discard.

import { Fault, ask, direct, events, json, send } from "./api.js";
import { notice } from "./dom.js";
import { requestSettings } from "./settings.js";
import { emit, presentTurns, replacementOf, state } from "./state.js";

const STORED_CHECK_MS = 2_000;
/** Checks of an unstored turn after it was shown; then the page says so until it is opened again. */
const STORED_CHECKS = 60;
/** Pause between two looks at what other tabs and devices do. */
const LOOK_MS = 3_000;
/** Pause before a broken connection is made again; the answer goes on meanwhile. */
const RECONNECT_MS = 1_000;

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

/** The list's entry of a session as it was when the session was read: a change of it means news. */
let seen = "";
const entryOf = (id) => JSON.stringify(state.listed.find((session) => session.id === id) ?? null);

async function load(id) {
  const entry = entryOf(id);
  const shown = await json(`/api/sessions/${id}?replaced=1`);
  seen = entry;
  return shown;
}

/** Whether the endpoint admitted this tab. */
let admitted = false;

export async function refreshList() {
  const { sessions } = await json("/api/sessions");
  const changed = !admitted || JSON.stringify(sessions) !== JSON.stringify(state.listed);
  admitted = true;
  state.listed = sessions;
  if (changed) emit("list");
}

/** Leaves the conversation that is shown. An answer under way in it goes on. */
function leave(id) {
  const running = state.running;
  state.running = null;
  // Before the endpoint has the message, the end of the request would be the end of the message.
  if (running?.answers) running.controller.abort();
  Object.assign(state, { current: id, shown: null, failure: "", leftOut: [], branchAfter: null, before: null, report: null });
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
      // The entry that the list has before the session is read.
      if (!state.listed.length) await listing;
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
    if (state.shown.running === "page") attach(id);
    watchStored(here, STORED_CHECKS);
  }
  await listing;
}

/**
 * Sends messages and shows the answer as it comes.
 * @param {{ role: string, content: string }[]} messages
 * @param {{ replaces?: number, branch_after?: number }} place
 * @param {boolean} again Whether they are those of the pending message: the endpoint refuses what it answered meanwhile.
 */
export async function say(messages, place = {}, again = false) {
  if (state.running) return;
  const pending = state.shown?.pending;
  if (pending && !again) {
    state.leftOut.push({ after: presentTurns().length, messages: pending, text: state.shown.pending_text ?? "" });
  }
  if (state.shown) state.shown.pending = null;
  if (place.replaces != null) state.before = null;
  notice("");
  const run = begun({ session: state.current, messages, place, own: true });
  await follow(run, async () => {
    run.session ?? enter(run, (await json("/api/sessions", { method: "POST" })).id);
    const { system, ...settings } = requestSettings(state.shown);
    const response = await send("POST", `/api/sessions/${run.session}/turns${again ? "?pending=1" : ""}`,
      { messages: [...system, ...messages], ...settings, ...place }, { signal: run.controller.signal });
    enter(run, response.headers.get("x-baton-session"));
    return response;
  });
}

/** Shows an answer that another tab asked for, or this one before it was loaded again. */
function attach(id) {
  const { pending, pending_text: text } = state.shown;
  const from = presentTurns().length ? id : null;
  const run = begun({ session: id, messages: pending ?? [], place: {}, own: false, from });
  run.text = text ?? "";
  follow(run, () => answerAgain(run));
}

const answerOf = (run) => ask(`/api/sessions/${run.session}/answer`, { signal: run.controller.signal });

function begun(parts) {
  const run = { text: "", notes: [], from: state.current, controller: new AbortController(), begun_ms: Date.now(), ...parts };
  Object.assign(state, { running: run, failure: "", report: null });
  step++;
  emit("session", { sent: run.own });
  return run;
}

/** Reads an answer to its end. The endpoint goes on without a reader, so a broken connection is made again. */
async function follow(run, begin) {
  let fault = null;
  try {
    let response = await begin();
    while (!await isRead(run, response)) response = await answerAgain(run);
  } catch (error) {
    fault = error;
    if (fault.status === 401) onNoKey();
  }
  // Another conversation may have been opened meanwhile.
  if (state.running !== run) return;
  state.running = null;
  await act(() => settle(run, fault));
}

/** Shows what comes of an answer. Returns whether its end came. */
async function isRead(run, response) {
  run.answers = true;
  if (state.running !== run) run.controller.abort();
  if (run.stops) stop();
  const end = await readEvents(run, response);
  if (end?.error) throw new Fault(502, end.error);
  if (end?.answer?.omitted || end?.answer?.messages_left_out) state.answers.set(end.answer.receipt, end.answer);
  return Boolean(end);
}

async function readEvents(run, response) {
  try {
    for await (const event of events(response)) {
      if (event.messages) {
        Object.assign(run, { messages: event.messages, text: "", notes: [], begun_ms: Date.now() - event.waited_ms });
        if (event.replaces != null) run.place = { replaces: event.replaces };
        if (state.running === run) emit("session");
      }
      run.text += event.text ?? "";
      run.notes.push(...event.notes ?? []);
      if (state.running === run) emit("stream");
      if (event.end) return event.end;
    }
  } catch (error) {
    if (run.controller.signal.aborted) throw error;
  }
  return null;
}

async function answerAgain(run) {
  for (;;) {
    try {
      const response = await answerOf(run);
      setUnreachable(false);
      return response;
    } catch (fault) {
      if (fault.code !== "unreachable" && fault.status !== 429) throw fault;
      setUnreachable(fault.code === "unreachable");
    }
    await new Promise((done) => setTimeout(done, RECONNECT_MS));
    if (state.running !== run) throw new Fault(0, null);
  }
}

/** Shows the session that the endpoint began for this answer. */
function enter(run, id) {
  run.session = id;
  if (state.running !== run || state.current === id) return;
  state.current = id;
  history.replaceState(null, "", addressOf(id));
}

/** Shows the endpoint's state of the session after an answer, also after one that stopped or failed. */
async function settle(run, fault) {
  const here = step;
  // What the endpoint has says more than that it has no such answer, or not any more.
  const failure = !fault || ["no_answer", "message_not_pending", "session_busy"].includes(fault.code) ? "" : inWords(fault);
  const shown = await afterwards(run).catch((other) => { if (other.status !== 404) throw other; });
  if (here !== step) return;
  Object.assign(state, { branchAfter: null, before: null });
  if (!shown) {
    history.replaceState(null, "", addressOf(run.from));
    await open(run.from, { push: false });
    return restore(run, failure);
  }
  Object.assign(state, { shown, failure: shown.pending ? failure : "" });
  if (shown.running === "page") return attach(run.session);
  if (shown.pending) shown.pending_text ||= run.text;
  const present = shown.pending ?? presentTurns().at(-1)?.messages ?? [];
  if (present.some((message) => message.content === run.messages.at(-1)?.content)) emit("session");
  else restore(run, failure);
  watchStored(here, STORED_CHECKS);
}

/** The session of an answer; none if the endpoint has nothing in it. */
async function afterwards(run) {
  await refreshList();
  if (!run.session) return undefined;
  const shown = await load(run.session);
  if (shown.turns.length || shown.pending || shown.running || run.from === run.session) return shown;
  await ask(`/api/sessions/${run.session}`, { method: "DELETE" });
  await refreshList();
}

/** Puts a message that the endpoint does not have back into the box, also of a tab that was loaded again after it sent it. */
function restore(run, failure) {
  emit("session");
  emit("draft", run.messages.at(-1)?.content ?? null);
  if (failure) notice(failure, "bad");
}

function setUnreachable(unreachable) {
  if (state.unreachable === unreachable) return;
  state.unreachable = unreachable;
  emit("network");
}

/** Looks at what other tabs and devices do, while somebody looks at this one. */
export async function look() {
  if (direct || document.hidden || state.running || !admitted) return;
  const here = step;
  try {
    await refreshList();
    setUnreachable(false);
    if (here !== step || !state.shown || entryOf(state.current) === seen || document.querySelector("form.edit")) return;
    const shown = await load(state.current);
    if (here !== step) return;
    shown.pending_text ||= JSON.stringify(shown.pending) === JSON.stringify(state.shown.pending) ? state.shown.pending_text : "";
    state.shown = shown;
    emit("session");
    if (shown.running === "page") attach(state.current);
  } catch (fault) {
    if (fault.code === "unreachable") setUnreachable(true);
  }
}

/** Begins to look. */
export function setUpLooks() {
  setInterval(look, LOOK_MS);
  document.addEventListener("visibilitychange", look);
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

/** Stops the answer under way, in all tabs; its text stays. */
export const stop = () => act(async () => {
  const run = state.running;
  if (!run) return;
  run.stops = true;
  // Before the endpoint has it, there is nothing to stop yet.
  if (run.answers) await ask(`/api/sessions/${run.session}/stop`, { method: "POST" }).catch((fault) => { if (fault.code !== "no_answer") throw fault; });
});

/** Asks for the rest of the pending answer. */
export const resume = () => act(() => say(state.shown.pending, {}, true));

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

/** Shows the version of the conversation that has a turn. */
export function showVersion(turn) {
  state.before = replacementOf(turn);
  emit("session");
}

/** Sends what was written, at the end or as the beginning of a branch. An earlier version goes on as a branch. */
export function sendDraft(text) {
  const after = state.branchAfter ?? (state.before === null ? null : presentTurns().at(-1).seq);
  return act(() => say([{ role: "user", content: text }], after === null ? {} : { branch_after: after }));
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
  if (fault.code === "context_length_exceeded") return "This message is too long for the model. Shorten it, or choose another model.";
  return `${fault.message.charAt(0).toUpperCase()}${fault.message.slice(1)}`;
}
