// The box for the next message.

import { $, icon, notice } from "./dom.js";
import { sendDraft, stop } from "./session.js";
import { on, state } from "./state.js";

/** The name of the text that a reload of this tab brings back. */
const DRAFT = "draft";

/** Fits the box to its text, and saves the text for a reload. */
function fit() {
  const box = $("message");
  sessionStorage.setItem(DRAFT, box.value);
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
  $("send").disabled = !box.value.trim();
}

/** Puts a text into the box, unless something else is written there; null only puts the cursor there. */
function draft(text) {
  const box = $("message");
  if (text !== null && !box.value.trim()) box.value = text;
  fit();
  box.focus();
}

function send() {
  const text = $("message").value;
  if (!text.trim() || state.running) return;
  $("message").value = "";
  fit();
  sendDraft(text);
}

/** Says that files are not sent. */
function refuseFiles(event, given) {
  if (!given?.files.length) return;
  event.preventDefault();
  notice("Baton sends text only.");
}

export function setUpComposer() {
  const box = $("message");
  box.value = sessionStorage.getItem(DRAFT) ?? "";
  document.addEventListener("paste", (event) => refuseFiles(event, event.clipboardData));
  document.addEventListener("dragover", (event) => { if (event.dataTransfer?.types.includes("Files")) event.preventDefault(); });
  document.addEventListener("drop", (event) => refuseFiles(event, event.dataTransfer));
  $("send").append(icon("send"));
  $("stop").append(icon("stop"));
  $("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  box.addEventListener("input", fit);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  $("stop").addEventListener("click", stop);
  on("draft", draft);
  on("session", (change) => {
    const running = Boolean(state.running);
    const focused = document.activeElement === $("send") || document.activeElement === $("stop");
    $("send").hidden = running;
    $("stop").hidden = !running;
    if (focused || change?.opened) box.focus({ preventScroll: true });
  });
  fit();
}
