// The receipt of a turn: what both sides signed, first in words, then in full.

import { $, element, icon } from "./dom.js";
import { day, modelName, plural, seconds, short } from "./words.js";

/** @param {Map<string, number>} colours The colour of each node. */
export function showReceipt(turn, colours) {
  const { receipt } = turn;
  $("receiptTitle").textContent = `Turn ${turn.seq + 1}`;
  const lines = [answered(turn, colours), ...takeovers(turn, colours), signed(turn), stored(turn)];
  if (turn.replaced_by != null) lines.push(line("again", `Turn ${turn.replaced_by + 1} replaced this one. It stays in the chain.`));
  if (turn.replaces_from != null) lines.push(line("again", `It replaced turn ${turn.replaces_from + 1}.`));
  const details = element("details", {}, element("summary", { textContent: "Hashes and numbers" }), facts(turn));
  $("receiptBody").replaceChildren(element("ul", { className: "lines" }, ...lines), details);
  if (!receipt) $("receiptBody").prepend(element("p", { className: "remark", textContent: "The session was recovered from its words, and receipts are not in the store." }));
  $("receipt").showModal();
}

const line = (name, ...children) => element("li", {}, icon(name), element("span", {}, ...children));
const nodeName = (node, colours) => element("span", { className: "node", title: `Node ${node}` },
  element("i", { className: `dot node-${colours.get(node)}` }), short(node));

function answered(turn, colours) {
  const { receipt } = turn;
  const time = receipt ? ` in ${seconds(receipt.first_token_ms + receipt.decode_ms)}` : "";
  const tokens = receipt ? `: ${plural(receipt.output_tokens, "token")} after reading ${receipt.input_tokens}` : "";
  const memory = receipt?.memory_items ? `, with ${plural(receipt.memory_items, "memory item")}` : "";
  return line("send", "Answered by ", nodeName(turn.node, colours), ` with ${modelName(turn)}${time}${tokens}${memory}.`);
}

const takeovers = (turn, colours) => (turn.took_over ?? []).map((begun) =>
  line("branch", nodeName(begun.node, colours), ` began the answer and stopped after ${plural(begun.tokens, "token")}.`));

function signed(turn) {
  if (!turn.receipt) return line("shield", "Signed by the node; your client checked the signature and the hashes.");
  return line("shield", turn.acked ? "Both sides signed. Your client checked the node's signature, the hashes and the rebuilt record."
    : "The node signed, and your client checked it. Your own signature is on its way to the node.");
}

function stored(turn) {
  if (!turn.stored) return line("copy", "Not stored yet: this device has the only copy. Your client keeps trying.");
  if (!turn.kept_until_ms) return line("copy", "Stored.");
  return line("copy", `Stored until ${day(turn.kept_until_ms)} at least, and renewed before while your client runs.`);
}

function facts(turn) {
  const receipt = turn.receipt ?? {};
  const pairs = {
    Node: turn.node, Time: new Date(turn.time_ms).toLocaleString(), Segment: turn.segment == null ? undefined : turn.segment + 1,
    Model: turn.model, "Model hash": receipt.model, Engine: receipt.engine, Seed: receipt.seed,
    "Tokens read": receipt.input_tokens, "Tokens written": receipt.output_tokens, "Memory items": receipt.memory_items, Price: receipt.price,
    "First token": receipt.first_token_ms === undefined ? undefined : seconds(receipt.first_token_ms),
    Writing: receipt.decode_ms === undefined ? undefined : seconds(receipt.decode_ms),
    "Ended by": turn.finish, Receipt: receipt.hash, Link: turn.link,
  };
  const list = Object.entries(pairs).filter(([, value]) => value != null);
  return element("dl", {}, ...list.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: value })]));
}
