// Recovery words, which only a client in this page shows: shown, and read back.

import { direct } from "./api.js";
import { $, copy, element } from "./dom.js";
import { answerOf } from "./menu.js";
import { act, open } from "./session.js";

/** Shows the 24 words of a conversation. */
export async function showWords(id) {
  const words = await direct.words(id);
  $("wordList").replaceChildren(...words.split(" ").map((textContent) => element("li", { textContent })));
  $("wordsCopy").onclick = () => copy(words, $("wordsCopy"));
  await answerOf($("words"));
  $("wordList").replaceChildren();
  $("wordsCopy").onclick = null;
}

async function restore() {
  $("settings").close("no");
  $("restoreWords").value = "";
  if (await answerOf($("restore")) !== "yes") return;
  const words = $("restoreWords").value;
  $("restoreWords").value = "";
  await act(async () => open(await direct.restore(words)));
}

export function setUpRecovery() {
  $("restoreButton").addEventListener("click", restore);
}
