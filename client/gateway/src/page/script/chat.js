// The log: turns, the answer under way, and the beginning of an empty conversation.

import { $, element, icon, textButton } from "./dom.js";
import { renderMarkdown } from "./markdown.js";
import { branchAfter, remove, setUpLooks } from "./session.js";
import { privacy } from "./settings.js";
import { emit, on, presentTurns, state } from "./state.js";
import { leftOutView, messageViews, pendingView, turnView } from "./turn.js";
import { nodeColours, seconds, shortTitle } from "./words.js";

/** A log that shows its end, within this many pixels, keeps showing it. */
const NEAR_END_PX = 80;
const STARTERS = [
  ["Explain an idea", "Explain how a hash chain works, with a small example."],
  ["Write code", "Write a Python function that merges overlapping intervals, with tests."],
  ["Compare", "Compare PostgreSQL and SQLite for a small web application, as a table."],
  ["Improve a text", "Make the following text shorter and clearer. Keep its meaning.\n\n"],
];

/** The views of turns with what they show, to keep those that did not change. */
let views = new Map();
/** Whether the log shows its end, and keeps showing it when it grows. */
let following = true;

/** The view for this key and content, made only if the content changed. */
function kept(fresh, key, content, make) {
  const signature = JSON.stringify(content);
  const before = views.get(key);
  // A message that is being edited is left alone.
  const same = before?.signature === signature || before?.view.querySelector("form.edit");
  const entry = same ? before : { signature, view: alone(make) };
  fresh.set(key, entry);
  return entry.view;
}

/** A view; one that fails does not hide the others. */
function alone(make) {
  try {
    return make();
  } catch {
    return element("p", { className: "turn remark", textContent: "This turn cannot be shown. An export has its text." });
  }
}

/** All versions of each turn, oldest first, by the place that they share: that of the turn that was replaced first. */
function versionsOf(turns) {
  const versions = new Map();
  for (const turn of turns) versions.set(placeOf(turn), [...(versions.get(placeOf(turn)) ?? []), turn]);
  return versions;
}

const placeOf = (turn) => turn.replaces_from ?? turn.seq;

/** The turns before the answer under way: an edit replaces some, and a branch leaves some. */
function turnsBefore(turns) {
  const { replaces, branch_after: after = state.branchAfter } = state.running?.place ?? {};
  const cut = turns.findIndex((turn) => (replaces != null ? turn.seq >= replaces : after != null && turn.seq > after));
  return cut < 0 ? turns : turns.slice(0, cut);
}

function draw() {
  const fresh = new Map();
  const all = state.shown?.turns ?? [];
  const colours = nodeColours(all);
  const turns = turnsBefore(presentTurns());
  const allVersions = versionsOf(all);
  const nodes = turns.map((turn, index) => {
    const versions = allVersions.get(placeOf(turn));
    const last = index === turns.length - 1 && !state.running && !state.shown.pending;
    const content = [turn, versions.map((version) => version.seq), last, turn.node && colours.get(turn.node), state.answers.has(turn.receipt?.hash)];
    return kept(fresh, `${state.current} ${turn.seq}`, content, () => turnView(turn, { colours, versions, last }));
  });
  state.leftOut.forEach((left, index) => {
    nodes.splice(left.after + index, 0, kept(fresh, `left ${index}`, left, () => leftOutView(left)));
  });
  for (const branch of state.shown?.branches ?? []) nodes.push(kept(fresh, `beside ${branch.name}`, branch, () => besideView(branch)));
  if (state.shown?.deleted_elsewhere) nodes.push(deletedNote());
  if (!state.running && (state.branchAfter !== null || state.before !== null)) nodes.push(branchNote());
  if (state.running) nodes.push(kept(fresh, "running", [state.running.from, state.running.messages], () => runningView(state.running)));
  else if (state.shown?.pending && state.branchAfter === null && state.before === null) {
    const { pending, pending_text: text, running } = state.shown;
    nodes.push(kept(fresh, "pending", [pending, text, state.failure, running], () => pendingView(pending, text, state.failure, running)));
  }
  if (!nodes.length) nodes.push(state.current && !state.shown ? element("p", { className: "loading", textContent: "Opening…" }) : kept(fresh, "empty", privacy(), empty));
  views = fresh;
  place(nodes);
}

/** Puts the nodes into the log and leaves those alone that are in place. */
function place(nodes) {
  const log = $("turns");
  nodes.forEach((node, index) => {
    if (log.children[index] !== node) log.insertBefore(node, log.children[index] ?? null);
  });
  while (log.children.length > nodes.length) log.lastChild.remove();
}

function empty() {
  const starters = STARTERS.map(([title, text]) => {
    const button = textButton("", () => emit("draft", text), { className: "starter" });
    button.append(element("strong", { textContent: title }), element("span", { textContent: shortTitle(text, 70) }));
    return button;
  });
  const said = privacy();
  const trust = said && element("details", { className: "trust" },
    element("summary", { textContent: `${said.summary} What you trust` }),
    element("ul", {}, ...[...said.details, ...said.relayer].map((textContent) => element("li", { textContent }))));
  return element("div", { className: "empty" }, element("h2", { textContent: "What shall we work on?" }),
    element("div", { className: "starters" }, ...starters), trust ?? "");
}

function branchNote() {
  if (state.branchAfter === null) {
    return element("p", { className: "branch-note" }, "This is an earlier version. Your next message goes on from it in a branch. ",
      textButton("Show the newest", () => { state.before = null; emit("session"); }, { className: "pill" }));
  }
  return element("p", { className: "branch-note" },
    `Your next message begins a branch after turn ${state.branchAfter + 1}. This conversation stays as it is. `,
    textButton("Cancel", () => branchAfter(null), { className: "pill" }));
}

/** Turns that two devices wrote at once, and that are beside the conversation. */
function besideView({ turns }) {
  const name = `Turn ${turns[0].seq + 1} was written on two devices. This version is beside the conversation.`;
  const words = turns.flatMap((turn) => turn.messages).map(({ role, text }) =>
    element("p", {}, element("strong", { textContent: role === "assistant" ? "Answer: " : "You: " }), text));
  return element("details", { className: "beside" }, element("summary", { textContent: name }), ...words);
}

function deletedNote() {
  return element("p", { className: "branch-note", role: "status" },
    "Another device deleted this conversation. It can be read here, and takes no more messages. ",
    textButton("Remove it here", () => remove(state.current), { className: "pill" }));
}

function runningView(running) {
  const text = element("div", { className: "answer prose" });
  return element("article", { className: "turn running", aria: { label: "Answer under way" } }, ...messageViews(running.messages),
    text, element("div", { className: "notes", role: "status" }), element("p", { className: "waiting", role: "status" }));
}

/** Shows that something happens before the first token. */
function drawWaiting() {
  const line = document.querySelector(".running .waiting");
  if (!line || !state.running) return;
  const waited = Date.now() - state.running.begun_ms;
  const found = state.nodes?.length;
  const text = state.unreachable ? "baton serve does not answer; looking again" : found ? "Waiting for the answer" : "Looking for nodes";
  line.hidden = state.running.text !== "" && !state.unreachable;
  line.textContent = `${text}…${waited >= 2000 ? ` ${seconds(Math.floor(waited / 1000) * 1000).replace(".0", "")}` : ""}`;
}

let frame = 0;

function drawStream() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    const place = document.querySelector(".running .answer");
    if (!place || !state.running) return;
    place.classList.add("working");
    renderMarkdown(place, state.running.text);
    const notes = document.querySelector(".running .notes");
    for (const note of state.running.notes.slice(notes.childElementCount)) {
      notes.append(element("p", { className: "remark" }, icon("branch"), `${note.charAt(0).toUpperCase()}${note.slice(1)}.`));
    }
    drawWaiting();
  });
}

/** Shows the end of the log, unless the person scrolled away from it. */
function follow() {
  // The beginning of an empty conversation is read from its top.
  if (following && !document.querySelector("#turns > .empty")) $("log").scrollTop = $("log").scrollHeight;
}

export function setUpChat() {
  const log = $("log");
  let before = 0;
  log.addEventListener("scroll", () => {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX;
    // Only a person scrolls up; the browser itself scrolls down when text above grows.
    following = log.scrollTop < before ? atEnd : following || atEnd;
    before = log.scrollTop;
  });
  const resizes = new ResizeObserver(follow);
  resizes.observe($("turns"));
  resizes.observe(log);
  on("session", (change) => {
    draw();
    drawWaiting();
    if (state.running?.text || state.running?.notes.length) drawStream();
    $("log").setAttribute("aria-busy", String(Boolean(state.running)));
    if (change?.opened || change?.sent) following = true;
    follow();
  });
  on("stream", drawStream);
  on("network", drawWaiting);
  setInterval(drawWaiting, 1000);
  setUpLooks();
}

/** Brings a turn into view. */
export function revealTurn(seq) {
  const view = document.querySelector(`.turn[data-seq="${seq}"]`);
  view?.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}
