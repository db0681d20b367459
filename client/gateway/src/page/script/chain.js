// The chain as a picture: one mark a turn, oldest first, coloured by the node that served it.

import { $, element, icon, textButton } from "./dom.js";
import { revealTurn } from "./chat.js";
import { narrow } from "./list.js";
import { showReceipt } from "./receipt.js";
import { open, showVersion, verify } from "./session.js";
import { on, presentTurns, state, titleOf } from "./state.js";
import { day, modelName, nodeColours, plural, short, shortTitle } from "./words.js";

const SPACE = "http://www.w3.org/2000/svg";
/** Pixels: the height of a row, the lane of the conversation, the lane of replaced turns. */
const ROW = 44, MAIN = 18, ASIDE = 40, WIDTH = 58;
/** Marks in the strip of the header; of a longer chain it shows the end. */
const STRIP = 24;

/** The content of the last drawing: the same one is not drawn again, so that the focus stays in it. */
let drawn = "";

/** Draws the strip in the header, and the picture if it is open. */
function draw() {
  const content = JSON.stringify([$("chain").hidden, state.current, state.shown, state.report, state.listed]);
  if (content === drawn) return;
  drawn = content;
  const turns = state.shown?.turns ?? [];
  const colours = nodeColours(turns);
  $("strip").replaceChildren(...turns.filter((turn) => turn.replaced_by == null).slice(-STRIP)
    .map((turn) => element("i", { className: `node-${colours.get(turn.node)}` })));
  $("chainButton").hidden = !turns.length;
  if (!state.current) toggleChain(false);
  if ($("chain").hidden) return;
  if (!state.shown) return $("chainBody").replaceChildren();
  $("chainBody").replaceChildren(...beginning(), ...segments(turns, colours), legend(turns, colours), verification());
}

/** The session that this one branched off. */
function beginning() {
  const { branch_of: parent } = state.shown;
  if (!parent) return [];
  return [branchLink("Branched from", parent.session)];
}

function branchLink(text, session) {
  const here = state.listed.some((one) => one.id === session);
  const title = shortTitle(titleOf(session) || short(session), 40);
  if (!here) return element("p", { className: "branch-link" }, icon("branch"), `${text} ${short(session)}, which is not on this device`);
  const link = element("a", { href: `/c/${session}`, textContent: `“${title}”` });
  link.addEventListener("click", (event) => { event.preventDefault(); open(session); });
  return element("p", { className: "branch-link" }, icon("branch"), `${text} `, link);
}

function segments(turns, colours) {
  const numbers = [...new Set(turns.map((turn) => turn.segment ?? 0))];
  return numbers.map((number, index) => {
    const own = turns.filter((turn) => (turn.segment ?? 0) === number);
    const closed = index < numbers.length - 1;
    const until = own.findLast((turn) => turn.stored)?.kept_until_ms;
    const waiting = own.filter((turn) => !turn.stored).length;
    const keeping = waiting ? `${plural(waiting, "turn")} not stored yet` : until ? `stored until ${day(until)}` : "stored";
    const rows = own.map((turn) => element("li", {}, row(turn, turns, colours), ...branchesAt(turn, turn === turns.at(-1))));
    return element("section", { className: "segment" },
      element("h3", {}, `Segment ${number + 1}`, element("span", { textContent: ` ${closed ? "closed" : "open"}, ${keeping}`, className: waiting ? "waits" : "" })),
      element("ol", {}, ...rows));
  });
}

/** Sessions of this device that branched off after a turn. */
function branchesAt(turn, last) {
  const branches = state.listed.filter((one) => one.branch_of?.session === state.shown.id && one.branch_of.link === turn.link);
  return branches.map((one) => {
    const link = branchLink("Branch", one.id);
    const svg = canvas();
    if (!last) svg.append(shape("path", { d: `M${MAIN} 0V${ROW}`, class: "line" }));
    svg.append(shape("path", { d: `M${MAIN} 0C${MAIN} ${ROW / 2} ${ASIDE} 0 ${ASIDE} ${ROW / 2}`, class: "line" }),
      shape("path", { d: `M${ASIDE - 5} ${ROW / 2}l5 5 5-5-5-5z`, class: "leaf" }));
    link.firstChild.replaceWith(svg);
    return link;
  });
}

function row(turn, turns, colours) {
  const replaced = turn.replaced_by != null;
  const asked = turn.messages?.findLast((message) => message.role === "user")?.content ?? "";
  const begun = (turn.took_over ?? []).map((one) => `${short(one.node)} → `).join("");
  const replaces = turn.replaces_from == null ? "" : `replaces turn ${turn.replaces_from + 1}`;
  const states = [replaced ? `replaced by turn ${turn.replaced_by + 1}` : "verified", replaces, turn.stored ? "" : "not stored yet"];
  const status = states.filter(Boolean).join(", ");
  const button = element("button", { type: "button", className: `mark${replaced ? " replaced" : ""}`, title: `${modelName(turn)}. ${replaced ? "Show this version" : "Show the receipt"}` },
    picture(turn, turns, colours),
    element("span", { className: "text" },
      element("span", { className: "asked", textContent: `${turn.seq + 1}. ${shortTitle(asked, 48)}` }),
      element("span", { className: "by", textContent: `${begun}${short(turn.node)}, ${status}` })));
  button.addEventListener("click", () => {
    if (!presentTurns().includes(turn)) showVersion(turn);
    // The words of a replaced turn are in the log, with the turns that followed it; its receipt is there too.
    if (replaced && narrow.matches) toggleChain(false);
    revealTurn(turn.seq);
    if (!replaced) showReceipt(turn, colours);
  });
  return button;
}

function shape(tag, attributes) {
  const made = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const canvas = () => shape("svg", { width: WIDTH, height: ROW, viewBox: `0 0 ${WIDTH} ${ROW}`, "aria-hidden": "true" });

/** The part of the picture in a turn's row: the line of the conversation, and replaced turns beside it. */
function picture(turn, turns, colours) {
  const at = turns.indexOf(turn);
  const replaced = turn.replaced_by != null;
  const present = (one) => one.replaced_by == null;
  const svg = canvas();
  const middle = ROW / 2;
  const lineTo = (path) => svg.append(shape("path", { d: path, class: "line" }));
  const before = turns.slice(0, at).some(present), after = turns.slice(at + 1).some(present);
  if (before || (at > 0 && !replaced)) lineTo(`M${MAIN} 0V${replaced ? (after ? ROW : 0) : middle}`);
  else if (replaced && after) lineTo(`M${MAIN} ${middle}V${ROW}`);
  if (!replaced && after) lineTo(`M${MAIN} ${middle}V${ROW}`);
  if (replaced) {
    const run = turns[at - 1] && !present(turns[at - 1]);
    lineTo(run && turns[at - 1].replaces_from !== turn.replaces_from && turn.replaces_from == null ? `M${ASIDE} 0V${middle}` : `M${MAIN} ${before ? 0 : middle}C${MAIN} ${middle} ${ASIDE} 0 ${ASIDE} ${middle}`);
    if (turns[at + 1] && !present(turns[at + 1]) && turns[at + 1].replaces_from == null) lineTo(`M${ASIDE} ${middle}V${ROW}`);
  }
  svg.append(...dot(turn, replaced ? ASIDE : MAIN, middle, colours));
  return svg;
}

/** The mark: full if the turn is part of the conversation, hollow if not; a smaller one for each node that began it. */
function dot(turn, x, y, colours) {
  const replaced = turn.replaced_by != null;
  const className = `node-${colours.get(turn.node)}`;
  const marks = (turn.took_over ?? []).slice(0, 2).map((begun, index) =>
    shape("circle", { cx: x, cy: y - 12 - 7 * index, r: 4, class: `full node-${colours.get(begun.node)}` }));
  marks.push(shape("circle", { cx: x, cy: y, r: replaced ? 6 : 9, class: `${replaced ? "hollow" : "full"} ${className}` }));
  if (!turn.stored) marks.push(shape("circle", { cx: x, cy: y, r: 12, class: `waits ${className}` }));
  if (!replaced) marks.push(shape("path", { d: `M${x - 4} ${y}l3 3 5-6`, class: "tick" }));
  return marks;
}

function legend(turns, colours) {
  const nodes = [...colours].map(([node, colour]) => {
    const served = turns.filter((turn) => turn.node === node).length;
    const part = served ? plural(served, "turn") : "began an answer";
    return element("li", {}, element("i", { className: `dot node-${colour}` }), `${short(node)}, ${part}`);
  });
  return element("section", { className: "legend" }, element("h3", { textContent: "Nodes" }), element("ul", {}, ...nodes));
}

/** What the last verification checked. */
function verification() {
  const { report } = state;
  const section = element("section", { className: "checks" }, element("h3", { textContent: "Verification" }));
  if (!report) {
    section.append(element("p", { textContent: "Each turn was checked when it came. Check the whole chain and its stored copies again:" }));
  } else {
    const missing = report.not_stored.length;
    const copies = missing ? `the store lacks ${plural(missing, "segment")}; this device has all`
      : `${plural(report.from_store, "segment")} read back from the store`;
    const lines = [
      report.good ? `✓ ${plural(report.turns, "turn")}, ${plural(report.receipts_checked, "receipt")} and ${plural(report.ids_checked, "blob ID")} match`
        : `✗ ${report.problems.map((problem) => `turn ${problem.turn + 1}: ${problem.code}`).join(", ")}`,
      copies, `checked at ${new Date(report.time_ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}`];
    section.append(element("ul", { className: report.good ? "good" : "bad" }, ...lines.map((textContent) => element("li", { textContent }))));
  }
  section.append(textButton("Verify now", verify, { className: "pill" }));
  return section;
}

/** Opens the picture beside the conversation, or closes it. */
export function toggleChain(show = $("chain").hidden) {
  if ($("chain").hidden === !show) return;
  $("chain").hidden = !show;
  $("chainButton").setAttribute("aria-expanded", String(show));
  // On a narrow screen the picture lies over the conversation.
  $("main").inert = show && narrow.matches;
  if (!show) return $("chainButton").focus();
  draw();
  $("chainClose").focus();
}

export function setUpChain() {
  on("session", draw);
  on("list", draw);
  $("chainButton").addEventListener("click", () => toggleChain());
  $("chainClose").addEventListener("click", () => toggleChain(false));
}
