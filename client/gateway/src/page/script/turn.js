// One turn of the conversation: the message, the answer, and a line on who answered.

import { copy, element, icon, iconButton, textButton } from "./dom.js";
import { renderMarkdown, showPlain } from "./markdown.js";
import { openMenu } from "./menu.js";
import { showReceipt } from "./receipt.js";
import { branchAfter, discard, regenerate, replace, resume, sendDraft, showVersion } from "./session.js";
import { state } from "./state.js";
import { day, modelName, plural, short } from "./words.js";

/** The question and the answer of a turn. */
export function turnView(turn, { colours, versions, last }) {
  const view = element("article", { className: "turn", data: { seq: turn.seq }, aria: { label: `Turn ${turn.seq + 1}` } });
  draw(view, turn, { colours, versions, last });
  return view;
}

function draw(view, turn, { colours, versions, last }) {
  const replaced = turn.replaced_by != null;
  const asked = turn.messages.findLast((message) => message.role === "user");
  const parts = messageViews(turn.messages);
  const tools = element("div", { className: "tools" });
  if (versions.length > 1) tools.append(versionSwitch(versions, turn));
  if (asked) {
    const button = iconButton("copy", "Copy message", () => copy(asked.content, button));
    tools.append(button);
    if (!replaced) tools.append(iconButton("edit", "Edit message", () => edit(view, turn, asked.content, () => draw(view, turn, { colours, versions, last }))));
  }
  const answered = turn.messages.at(-1)?.role === "assistant" ? turn.messages.at(-1).content : null;
  parts.splice(parts.length - (answered === null ? 0 : 1), 0, tools);
  view.classList.toggle("replaced", replaced);
  view.replaceChildren(...parts, ...remarks(turn, last && !replaced), marks(turn, { colours, replaced, last, answered }));
}

/** Messages as a turn shows them. */
export const messageViews = (messages) => messages.map((message) => {
  if (message.role === "user") return said(message.content);
  if (message.role === "assistant") return answer(message.content);
  return showPlain(element("div", { className: "quiet" }), `${message.role}: ${message.content}`);
});

const said = (text) => showPlain(element("div", { className: "said" }), text);

function answer(text) {
  const made = element("div", { className: "answer prose" });
  renderMarkdown(made, text);
  return made;
}

/** Leads to the other versions, each with all turns that followed it. */
function versionSwitch(versions, shownVersion) {
  const at = versions.indexOf(shownVersion);
  const step = (name, label, to) => {
    const button = iconButton(name, label, () => {
      showVersion(versions[to]);
      const buttons = [...document.querySelectorAll(`.turn[data-seq="${versions[to].seq}"] .versions button`)];
      (buttons.find((other) => !other.disabled && other.title === label) ?? buttons.find((other) => !other.disabled))?.focus();
    });
    button.disabled = to < 0 || to >= versions.length;
    return button;
  };
  return element("span", { className: "versions" },
    step("left", "Earlier version", at - 1),
    element("span", { textContent: `${at + 1} of ${versions.length}`, aria: { label: `Version ${at + 1} of ${versions.length}` , role: "status" } }),
    step("right", "Later version", at + 1));
}

/** Lines about an unusual end or beginning of an answer. */
function remarks(turn, last) {
  const lines = (turn.took_over ?? []).map((begun) => element("p", { className: "remark" },
    icon("branch"), `${short(begun.node)} stopped after ${plural(begun.tokens, "token")}; ${short(turn.node)} continued.`));
  lines.push(...leftOut(turn), ...memories(turn));
  if (turn.finish === "length") {
    const tokens = turn.receipt ? ` of ${plural(turn.receipt.output_tokens, "token")}` : "";
    const line = element("p", { className: "remark" }, `The answer stopped at its limit${tokens}.`);
    if (last) line.append(" ", textButton("Continue", () => sendDraft("Continue."), { className: "pill" }));
    lines.push(line);
  }
  return lines;
}

/** Says which parts of the conversation the answer was made without. */
function leftOut(turn) {
  const { omitted, messages_left_out: messages } = state.answers.get(turn.receipt?.hash) ?? {};
  const turns = turn.omitted_turns;
  const lines = [omitted?.message ? `${omitted.message}.`
    : turns && `${plural(turns, "earlier turn")} ${turns === 1 ? "was" : "were"} left out: the conversation is longer than the model's context.`,
  messages && `The oldest ${plural(messages, "message")} of this conversation did not fit into the branch.`];
  return lines.filter(Boolean).map((textContent) => element("p", { className: "remark", textContent }));
}

/** The memories that the answer used. */
function memories(turn) {
  const used = turn.memories ?? [];
  const known = used.length || turn.receipt?.memory_items;
  if (!known) return [];
  const count = known === 1 ? "1 memory" : `${known} memories`;
  if (!used.length) return [element("p", { className: "remark", textContent: `Answered with ${count}; their text is not on this device.` })];
  return [element("details", { className: "memories" }, element("summary", { textContent: `Answered with ${count}` }),
    element("ul", {}, ...used.map(({ text, kind, created }) => element("li", { dir: "auto" }, text,
      element("span", { className: "hint", textContent: ` ${kind}, ${day(Date.parse(created))}` })))))];
}

function marks(turn, { colours, replaced, last, answered }) {
  const shield = textButton("", () => showReceipt(turn, colours), { className: "verified", title: "Show the receipt" });
  shield.append(icon("shield"), replaced ? "Replaced" : "Verified");
  const node = element("span", { className: "node", title: `Node ${turn.node}` },
    element("i", { className: `dot node-${colours.get(turn.node)}` }), short(turn.node));
  const line = element("div", { className: "marks" }, shield, node, element("span", { className: "model", textContent: modelName(turn) }),
    element("span", turn.stored ? { className: "kept", textContent: turn.kept_until_ms ? `stored until ${day(turn.kept_until_ms)}` : "stored" }
      : { className: "kept waits", textContent: "not stored yet" }));
  const tools = element("span", { className: "tools" });
  if (answered !== null) {
    const button = iconButton("copy", "Copy answer", () => copy(answered, button));
    tools.append(button);
  }
  if (!replaced) {
    if (last) tools.append(iconButton("again", "Regenerate answer", () => regenerate(turn)));
    const more = iconButton("more", `More for turn ${turn.seq + 1}`, () => openMenu(more, [
      { text: "Branch from here", icon: "branch", work: () => branchAfter(turn.seq) },
      { text: "Show receipt", icon: "shield", work: () => showReceipt(turn, colours) },
    ]));
    more.setAttribute("aria-haspopup", "menu");
    tools.append(more);
  }
  line.append(tools);
  return line;
}

/** A box in place of the message. */
function edit(view, turn, text, cancel) {
  const box = element("textarea", { value: text, dir: "auto", rows: Math.min(8, text.split("\n").length + 1), aria: { label: "Edited message" } });
  const form = element("form", { className: "edit" }, box, element("div", { className: "row" },
    element("span", { className: "hint", textContent: "Replaces this turn and all later ones. They stay in the chain." }),
    textButton("Cancel", cancel), element("button", { type: "submit", className: "primary", textContent: "Send" })));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (box.value.trim() && !state.running) replace(turn, box.value);
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
    if (event.key === "Escape") { event.stopPropagation(); cancel(); }
  });
  view.replaceChildren(form);
  box.focus();
}

/** A message whose answer stopped or failed, with the part of the answer that came. */
export function pendingView(messages, text, failure, running) {
  const view = element("article", { className: "turn pending", aria: { label: "Unanswered message" } }, ...messageViews(messages));
  if (text) view.append(answer(text));
  if (running) view.append(element("p", { className: "waiting", role: "status", textContent: "Another program has this answered…" }));
  else view.append(element("div", { className: "stopped", role: "status" },
    element("span", { className: failure ? "bad" : "", textContent: failure || (text ? "Stopped. This text is not part of the conversation yet." : "Stopped before the answer began.") }),
    textButton(text ? "Continue" : "Retry", resume, { className: "pill" }),
    textButton("Discard", discard, { className: "pill" })));
  return view;
}

/** A stopped answer that another message left behind. */
export function leftOutView({ messages, text }) {
  const view = element("article", { className: "turn replaced", aria: { label: "Stopped answer" } }, ...messageViews(messages));
  if (text) view.append(answer(text));
  view.append(element("p", { className: "remark", textContent: "Stopped; not part of the conversation." }));
  return view;
}
