// The conversations of this device: by time, with search, rename and delete.

import { $, element, icon, iconButton } from "./dom.js";
import { direct, json } from "./api.js";
import { exportEvidence, exportMarkdown } from "./export.js";
import { askTitle, confirmed, openMenu } from "./menu.js";
import { showWords } from "./recovery.js";
import { act, open, remove, rename } from "./session.js";
import { emit, on, state, titleOf } from "./state.js";
import { period, plural, shortTitle } from "./words.js";

const SEARCH_WAIT_MS = 200;
export const narrow = matchMedia("(max-width: 52rem)");

/** The sessions that a search found; null without one. */
let found = null;

function draw() {
  const groups = new Map();
  for (const session of found ?? state.listed) {
    const group = found ? "Found" : period(session.used_ms);
    groups.set(group, [...(groups.get(group) ?? []), session]);
  }
  const parts = [...groups].map(([name, sessions]) => element("section", {},
    element("h2", { textContent: name }), element("ul", {}, ...sessions.map(item))));
  if (!parts.length) parts.push(element("p", { className: "none", textContent: found ? "Nothing was found." : "Your conversations will be here." }));
  $("sessions").replaceChildren(...parts);
}

function item(session) {
  const title = shortTitle(titleFor(session));
  const link = element("a", { href: `/c/${session.id}`, title: plural(session.turns, "turn") }, element("span", { className: "name", dir: "auto", textContent: title }));
  if (session.branch_of) link.firstChild.prepend(icon("branch"), element("span", { className: "hidden", textContent: "Branch: " }));
  // The owner sees the conversations of all projects.
  if (session.project) link.append(element("span", { className: "snippet", textContent: session.project }));
  if (session.snippet) link.append(element("span", { className: "snippet", dir: "auto", textContent: session.snippet }));
  if (session.id === state.current) link.setAttribute("aria-current", "page");
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    toggleList(!narrow.matches);
    act(() => open(session.id));
  });
  const more = iconButton("more", `More for “${title}”`, () => openMenu(more, entries(session.id)));
  more.setAttribute("aria-haspopup", "menu");
  return element("li", {}, link, more);
}

const titleFor = (session) => session.title || (session.id === state.current && titleOf(session.id)) || "Not answered yet";

/** The entries of a session's menu. */
export function entries(id) {
  const session = state.listed.find((one) => one.id === id) ?? { id, title: "" };
  const title = titleFor(session);
  const all = [
    { text: "Rename", icon: "edit", work: async () => {
      const wanted = await askTitle(session.title);
      if (wanted !== null) await rename(id, wanted);
    } },
    { text: "Export as Markdown", icon: "copy", work: () => act(() => exportMarkdown(id, title)) },
    { text: "Export with proofs (JSON)", icon: "shield", work: () => act(() => exportEvidence(id)) },
    ...(direct ? [{ text: "Recovery words", icon: "key", work: () => act(() => showWords(id)) }] : []),
    { text: "Delete", icon: "close", danger: true, work: async () => {
      const question = `Delete “${shortTitle(title)}” here and in the head index? Its sealed copy in the store stays unreadable.`;
      if (await confirmed(question, "Delete")) await remove(id);
    } },
  ];
  return session.turns || state.shown?.turns.length ? all : all.slice(-1);
}

let searches = 0, wait = 0;

function search() {
  clearTimeout(wait);
  const words = $("search").value.trim();
  const own = ++searches;
  if (!words) {
    found = null;
    return draw();
  }
  wait = setTimeout(() => act(async () => {
    const { sessions } = await json(`/api/sessions/search?q=${encodeURIComponent(words.slice(0, 200))}`);
    if (own !== searches) return;
    found = sessions;
    draw();
    $("searchState").textContent = `${plural(sessions.length, "conversation")} found`;
  }), SEARCH_WAIT_MS);
}

/** Shows the list, or hides it. On a narrow screen it lies over the conversation. */
export function toggleList(show = $("app").classList.contains("closed")) {
  $("app").classList.toggle("closed", !show);
  $("toggle").setAttribute("aria-expanded", String(show));
  $("main").inert = show && narrow.matches;
  if (show && narrow.matches) $("listClose").focus();
}

export function setUpList() {
  on("list", draw);
  // The mark of the conversation that is shown.
  on("session", (change) => { if (change?.opened) draw(); });
  $("search").addEventListener("input", search);
  $("search").addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    $("search").value = "";
    search();
  });
  $("new").addEventListener("click", () => {
    toggleList(!narrow.matches);
    act(() => open(null)).then(() => emit("draft", null));
  });
  $("toggle").addEventListener("click", () => toggleList());
  for (const id of ["scrim", "listClose"]) $(id).addEventListener("click", () => { toggleList(false); $("toggle").focus(); });
  narrow.addEventListener("change", () => toggleList(!narrow.matches));
  toggleList(!narrow.matches);
}
