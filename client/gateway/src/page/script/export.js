// A conversation as a file: as Markdown to read, or with all signatures as evidence.

import { ask, json } from "./api.js";
import { element } from "./dom.js";
import { modelName, short, shortTitle } from "./words.js";

function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The text of the present turns; each answer with its node, model and receipt. */
export function markdownOf(session, title) {
  const turns = session.turns.filter((turn) => turn.replaced_by == null);
  const parts = turns.flatMap((turn) => [
    ...(turn.messages ?? []).map((message) => (message.role === "assistant" ? message.content
      : `**${message.role === "user" ? "You" : message.role}:**\n\n${message.content.replace(/^/gm, "> ")}`)),
    `<sub>Turn ${turn.seq + 1}: node ${short(turn.node)}, ${modelName(turn)}${turn.receipt ? `, receipt ${short(turn.receipt.hash)}` : ""}</sub>`,
  ]);
  return `${[`# ${title}`, `Exported on ${new Date().toLocaleDateString([], { dateStyle: "long" })} from session ${session.id}.`, ...parts].join("\n\n")}\n`;
}

export async function exportMarkdown(id, title) {
  const session = await json(`/api/sessions/${id}`);
  const name = shortTitle(title, 40).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || short(id);
  download(new Blob([markdownOf(session, shortTitle(title))], { type: "text/markdown" }), `${name}.md`);
}

/** All links, receipts and sealed records, which any reader can check; without the key of the session. */
export async function exportEvidence(id) {
  const response = await ask(`/api/sessions/${id}/export`);
  download(await response.blob(), `session-${short(id)}.json`);
}
