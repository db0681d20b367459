// Settings of this browser, and the instructions of a conversation.

import { $, element } from "./dom.js";
import { direct, hasKey, json, signOut } from "./api.js";
import { emit, state } from "./state.js";

const NAME = "settings";

/** @returns {{ instructions?: string, temperature?: number, maxTokens?: number, memory?: boolean, model?: string }} */
function saved() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) ?? {};
  } catch {
    return {};
  }
}

const save = (changes) => localStorage.setItem(NAME, JSON.stringify({ ...saved(), ...changes }));

/** Instructions that the next message gives to a session, by its id. */
const instructions = new Map();

/** The instructions that a session has. */
const instructionsOf = (shown) => (shown?.system ?? []).map((message) => message.content).join("\n\n");

/** The part of a request that the settings decide. */
export function requestSettings(shown) {
  const { instructions: all = "", temperature, maxTokens, memory = true, model } = saved();
  const wanted = shown?.turns.length ? instructions.get(shown.id) : all;
  const changed = wanted !== undefined && wanted !== instructionsOf(shown);
  return {
    // An empty text takes the instructions away.
    system: changed ? [{ role: "system", content: wanted }] : [],
    ...(model && { model }), ...(temperature !== undefined && { temperature }),
    ...(maxTokens !== undefined && { max_tokens: maxTokens }), ...(!memory && { memory: false }),
  };
}

export const chosenModel = () => saved().model ?? "";
export const chooseModel = (model) => save({ model: model || undefined });

/** Whether the endpoint and this key have memory. */
const hasMemory = () => Boolean(state.defaults) && state.defaults.memory !== "off";

/** Who can read what, as the endpoint says under these settings; null before it said so. */
export function privacy(memory = saved().memory ?? true) {
  const { defaults } = state;
  return defaults && (memory ? defaults.privacy : defaults.privacy_without_memory);
}

/** Asks for the endpoint's settings. Until then the page says nothing that depends on them. */
export async function loadDefaults() {
  state.defaults = await json("/api/defaults").catch(() => state.defaults);
  emit("session");
}

function drawMemory() {
  const own = state.defaults?.owner ?? true;
  const lines = hasMemory() ? privacy($("memory").checked).relayer
    : own ? ["This endpoint has no memory. ", element("code", { textContent: "baton serve --memory" }), " adds it."]
      : ["This key uses no memory. The owner of this endpoint can turn it on."];
  $("memoryHint").replaceChildren(...lines.map((line) => (typeof line === "string" && hasMemory() ? `${line} ` : line)));
}

async function open() {
  await loadDefaults();
  const settings = saved();
  const own = state.shown?.turns.length;
  $("instructionsLabel").textContent = own ? "Instructions for this conversation" : "Instructions for new conversations";
  $("instructions").value = own ? instructions.get(state.current) ?? instructionsOf(state.shown) : settings.instructions ?? "";
  $("temperature").value = settings.temperature ?? "";
  $("temperature").placeholder = state.defaults ? Number(state.defaults.temperature.toFixed(2)) : "default";
  $("maxTokens").value = settings.maxTokens ?? "";
  $("maxTokens").placeholder = state.defaults?.max_tokens ?? "default";
  $("maxTokens").max = state.defaults?.largest_max_tokens ?? 32768;
  for (const place of document.querySelectorAll("[data-only]")) place.hidden = place.dataset.only !== (direct ? "direct" : "endpoint");
  $("memory").disabled = !hasMemory();
  $("memory").checked = hasMemory() && (settings.memory ?? true);
  $("memoriesButton").hidden = !hasMemory();
  $("signOut").hidden = Boolean(direct) || !hasKey();
  drawMemory();
  $("settings").returnValue = "no";
  $("settings").showModal();
}

function close() {
  if ($("settings").returnValue !== "yes") return;
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  const text = $("instructions").value.trim();
  save({ temperature: number("temperature"), maxTokens: number("maxTokens") });
  if (!$("memory").disabled) save({ memory: $("memory").checked });
  if (state.shown?.turns.length) instructions.set(state.current, text);
  else save({ instructions: text || undefined });
  // What a relayer gets depends on it.
  emit("session");
}

export function setUpSettings() {
  $("settingsButton").addEventListener("click", open);
  $("settings").addEventListener("close", close);
  $("memory").addEventListener("change", drawMemory);
  $("signOut").addEventListener("click", signOut);
}
