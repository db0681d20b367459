// The box for the next message.

import { $, icon } from "./dom.js";
import { sendDraft, stop } from "./session.js";
import { on, state } from "./state.js";

function fit() {
  const box = $("message");
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

export function setUpComposer() {
  const box = $("message");
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
