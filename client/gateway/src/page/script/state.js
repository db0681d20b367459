// What the page shows. Actions change it and emit an event; views listen.

/**
 * @typedef {object} Running An answer under way.
 * @property {string | null} session
 * @property {string | null} from The conversation in which it was asked.
 * @property {boolean} own Whether this tab asked.
 * @property {{ role: string, content: string }[]} messages
 * @property {{ replaces?: number, branch_after?: number }} place
 * @property {string} text
 * @property {string[]} notes Remarks about its nodes.
 * @property {AbortController} controller Ends the reading, not the answer.
 * @property {number} begun_ms
 */

export const state = {
  /** The session's id; null for one that begins with the next message. @type {string | null} */
  current: null,
  /** The endpoint's last answer about it. */
  shown: null,
  /** @type {Running | null} */
  running: null,
  /** Why the pending message has no answer. */
  failure: "",
  /** Stopped answers that this tab left for another message: shown, but no part of the conversation. */
  leftOut: [],
  /** The turn after which the next message begins a branch. @type {number | null} */
  branchAfter: null,
  /** The turn that replaced the version that is shown; null for the newest version. @type {number | null} */
  before: null,
  /** What was left out of answers that came in this tab, by receipt. @type {Map<string, any>} */
  answers: new Map(),
  /** Whether the endpoint does not answer at all. */
  unreachable: false,
  /** All sessions of this device. */
  listed: [],
  /** The nodes found; null before the first answer. */
  nodes: null,
  /** The endpoint's settings where a request sets none. */
  defaults: null,
  /** The last verification of the current session. */
  report: null,
};

const bus = new EventTarget();

/** @param {"session" | "stream" | "list" | "network" | "draft"} name */
export const on = (name, work) => bus.addEventListener(name, (event) => work(event.detail));
export const emit = (name, detail) => bus.dispatchEvent(new CustomEvent(name, { detail }));

/** The title of a session: its own one, or the beginning of its first message. */
export function titleOf(id) {
  const title = state.listed.find((session) => session.id === id)?.title;
  return title || state.shown?.pending?.at(-1)?.content || "";
}

/** The turns of the version that is shown. A replaced turn replaces nothing. */
export function presentTurns() {
  const { shown, before } = state;
  let from = Infinity;
  const present = [];
  for (const turn of [...(shown?.turns ?? [])].reverse()) {
    if ((before !== null && turn.seq >= before) || turn.seq >= from) continue;
    from = Math.min(from, turn.replaces_from ?? Infinity);
    present.unshift(turn);
  }
  return present;
}

/** The turn that replaced another one; null for a turn of the newest version. */
export const replacementOf = (turn) => state.shown.turns
  .find((later) => later.seq > turn.seq && later.replaces_from != null && later.replaces_from <= turn.seq)?.seq ?? null;
