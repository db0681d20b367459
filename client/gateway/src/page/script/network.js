// The nodes found, and the choice of a model.

import { json } from "./api.js";
import { $, element } from "./dom.js";
import { chooseModel, chosenModel } from "./settings.js";
import { emit, on, state } from "./state.js";
import { plural } from "./words.js";

const NEXT_LOOK_MS = 30_000;
const NEXT_LOOK_WITHOUT_NODE_MS = 3_000;
let next = 0;

function draw() {
  const { nodes, unreachable } = state;
  const place = $("network");
  place.textContent = unreachable ? "baton serve does not answer. Is it running?" : nodes === null ? "Looking for nodes…" : nodes.length ? plural(nodes.length, "node") : "No node found; still looking";
  place.className = nodes?.length && !unreachable ? "found" : "";
}

function drawModels() {
  const models = [...new Set(state.nodes.flatMap((node) => node.models))].sort();
  const chosen = chosenModel();
  // A chosen model stays chosen while its nodes are away.
  if (chosen && !models.includes(chosen)) models.push(chosen);
  $("model").replaceChildren(element("option", { value: "", textContent: "Any model" }),
    ...models.map((model) => element("option", { value: model, textContent: model })));
  $("model").value = chosen;
}

/** Looks for nodes, now and then. */
export async function watchNetwork() {
  clearTimeout(next);
  try {
    state.nodes = (await json("/api/nodes")).nodes;
    state.unreachable = false;
    drawModels();
  } catch (fault) {
    // The next request of the person says what else is wrong.
    state.unreachable = fault.code === "unreachable";
    state.nodes ??= [];
  }
  draw();
  emit("network");
  next = setTimeout(watchNetwork, state.nodes.length && !state.unreachable ? NEXT_LOOK_MS : NEXT_LOOK_WITHOUT_NODE_MS);
}

export function setUpNetwork() {
  draw();
  on("network", draw);
  $("model").addEventListener("change", () => chooseModel($("model").value));
}
