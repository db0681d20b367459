// Starts the chat page: that of `baton serve`, which has the sessions, or one with a client in it.

import { admitted, connect, direct, hasKey, setKey, watchKey } from "./api.js";
import { setUpChain, toggleChain } from "./chain.js";
import { setUpChat } from "./chat.js";
import { setUpComposer } from "./composer.js";
import { $, icon } from "./dom.js";
import { entries, setUpList } from "./list.js";
import { openMenu } from "./menu.js";
import { setUpNetwork, watchNetwork } from "./network.js";
import { setUpRecovery } from "./recovery.js";
import { act, open, stop, whenKeyRefused } from "./session.js";
import { setUpMemories } from "./memories.js";
import { loadDefaults, setUpSettings } from "./settings.js";
import { emit, on, state, titleOf } from "./state.js";
import { shortTitle } from "./words.js";

/** The session in the address. */
const addressed = () => location.pathname.match(/^\/c\/([\da-f]{64})$/)?.[1] ?? null;

const WRONG_KEY = "This key is wrong, has ended, or was removed. The owner of this endpoint can give you a link.";

function askKey(error = "") {
  $("keyError").textContent = error;
  if (!$("keyDialog").open) $("keyDialog").showModal();
}

async function begin() {
  await act(async () => {
    await connect();
    if (!await admitted()) return askKey(hasKey() ? WRONG_KEY : "");
    watchNetwork();
    loadDefaults();
    // A message may have been sent before this was known.
    if (!state.running) await open(addressed(), { push: false });
  });
}

function drawHeader() {
  const title = shortTitle(titleOf(state.current));
  $("title").textContent = title || "New conversation";
  document.title = title ? `${title} · Baton` : "Baton";
  $("title").classList.toggle("hidden", !state.current);
  $("gap").hidden = Boolean(state.current);
  $("more").hidden = !state.current;
  const { trouble } = state.shown ?? {};
  $("trouble").hidden = !trouble;
  $("trouble").textContent = trouble ? `The head index reports: ${trouble}. This device has its own copy; export it before you go on.` : "";
}

function keys(event) {
  const over = document.querySelector("dialog[open], :popover-open");
  if (event.key === "Escape" && !over) {
    if (state.running) stop();
    else toggleChain(false);
  }
  if (event.altKey && event.code === "KeyN") { event.preventDefault(); $("new").click(); }
  if (event.altKey && event.code === "KeyF") { event.preventDefault(); $("search").focus(); }
}

for (const place of document.querySelectorAll("[data-icon]")) place.prepend(icon(place.dataset.icon));
on("session", drawHeader);
on("list", drawHeader);
setUpChat();
setUpChain();
setUpComposer();
setUpList();
setUpSettings();
setUpRecovery();
setUpNetwork();
setUpMemories();
watchKey();
whenKeyRefused(() => {
  // The message was not taken: nothing waits for an answer, and the box has the text again.
  const text = state.running?.messages.at(-1).content;
  if (text) emit("draft", text);
  else emit("session");
  askKey(WRONG_KEY);
});
$("more").addEventListener("click", () => openMenu($("more"), entries(state.current)));
$("keyForm").addEventListener("submit", () => {
  setKey($("key").value.trim(), $("keyStays").checked);
  $("key").value = "";
  begin();
});
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close("no"));
document.addEventListener("keydown", keys);
// A client in this page ends with it, and with it what no store has yet.
addEventListener("beforeunload", (event) => { if (direct && (state.running || state.shown?.unstored)) event.preventDefault(); });
addEventListener("popstate", () => act(() => open(addressed(), { push: false })));
state.current = addressed();
emit("session");
begin();
