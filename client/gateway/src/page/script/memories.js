// The memories of this key: to see, edit and forget.

import { json, send } from "./api.js";
import { $, element, textButton } from "./dom.js";
import { confirmed } from "./menu.js";
import { state } from "./state.js";
import { day } from "./words.js";

const SEARCH_WAIT_MS = 250;
/** Memories that are shown at once; more on demand. */
const PAGE = 20;
const KINDS = { fact: "Fact", entity: "Name", summary: "Summary", episode: "Exchange" };

/** The endpoint's last answer, newest first. */
let items = [];
let shown = PAGE;
/** Counts the requests: an answer that comes after a newer request is not shown. */
let step = 0;

/** Shows a sentence; an error with its remedy is the endpoint's. */
function say(text, kind = "") {
  $("memoriesState").textContent = text;
  $("memoriesState").className = kind;
}

/** Does something that may fail, and says how. */
async function act(work) {
  try {
    return await work();
  } catch (fault) {
    say(fault.status === 401 ? "This key is wrong by now. Close this, and reload the page." : `${fault.message}.`.replace("..", "."), "bad");
    return null;
  }
}

/** The places where memories are looked for and forgotten. */
function filter(withQuery = true) {
  const wanted = { query: withQuery ? $("memoryQuery").value.trim() : "", kind: $("memoryKind").value, project: $("memoryProject").value };
  return new URLSearchParams(Object.entries(wanted).filter(([, value]) => value));
}

function draw() {
  $("memoryList").replaceChildren(...items.slice(0, shown).map(view));
  $("memoriesMore").hidden = items.length <= shown;
  const { owner } = state.defaults;
  const [kind, project] = [$("memoryKind").value, $("memoryProject").value];
  // The owner's key reaches the memories of everybody: it names those that it forgets together.
  $("forgetAll").hidden = !items.length || Boolean($("memoryQuery").value.trim()) || (owner && !kind && !project);
  $("forgetAll").textContent = kind || project ? "Forget all of these…" : "Forget all…";
}

function view(item) {
  const about = [KINDS[item.kind] ?? item.kind, item.created && day(Date.parse(item.created)), state.defaults.owner && item.project].filter(Boolean);
  const edit = textButton("Edit", () => place.replaceChildren(editor(item, place)), { className: "pill" });
  const forget = textButton("Forget", () => forgetOne(item), { className: "pill danger" });
  const place = element("li", {}, element("p", { dir: "auto", textContent: item.text }),
    element("div", { className: "row" }, element("span", { className: "hint", textContent: about.join(" · ") }), edit, forget));
  return place;
}

function editor(item, place) {
  const box = element("textarea", { value: item.text, rows: 3, dir: "auto", required: true, aria: { label: "Memory" } });
  const back = textButton("Cancel", () => place.replaceWith(view(item)), { className: "pill" });
  const save = element("button", { type: "submit", className: "pill primary", textContent: "Save" });
  const form = element("form", {}, box, element("div", { className: "row" }, back, save));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    act(async () => {
      const changed = await (await send("PATCH", `/api/memory/${item.id}`, { text: box.value.trim() })).json();
      items = items.map((one) => (one === item ? changed : one));
      draw();
      say("Changed.", "good");
    });
  });
  setTimeout(() => box.focus());
  return form;
}

async function forgetOne(item) {
  if (!await confirmed("Forget this memory for good? Its conversation stays.", "Forget")) return;
  await act(async () => {
    await json(`/api/memory/${item.id}`, { method: "DELETE" });
    items = items.filter((one) => one !== item);
    draw();
    say("Forgotten.", "good");
  });
}

async function forgetAll() {
  const named = [$("memoryKind").selectedOptions[0], $("memoryProject").selectedOptions[0]].filter((option) => option?.value).map((option) => option.text);
  if (!await confirmed(`Forget ${named.length ? `all memories of ${named.join(", ")}` : "all memories of this key"} for good? The conversations stay.`, "Forget all")) return;
  const answer = await act(() => json(`/api/memory?${filter(false)}`, { method: "DELETE" }));
  if (!answer) return;
  await load();
  say(`${answer.deleted} forgotten.`, "good");
}

async function load() {
  const own = ++step;
  say("Asking the relayer…");
  const answer = await act(() => json(`/api/memory?${filter()}`));
  if (own !== step) return;
  items = answer?.items ?? [];
  shown = PAGE;
  draw();
  if (!answer) return;
  say(items.length ? "" : filter().size ? "Nothing was found." : "Nothing is remembered yet.");
}

/** The projects that the owner can choose: those of the memories. */
function drawProjects() {
  const projects = [...new Set(items.map((item) => item.project).filter(Boolean))].sort();
  $("memoryProject").replaceChildren(...[["", "All projects"], ...projects.map((name) => [name, name])]
    .map(([value, textContent]) => element("option", { value, textContent })));
}

async function open() {
  $("memoryQuery").value = $("memoryKind").value = "";
  $("memoryProject").replaceChildren();
  items = [];
  draw();
  const { owner } = state.defaults;
  $("memoryProjectPlace").hidden = !owner;
  $("memoriesScope").textContent = owner
    ? "The newest memories of all projects; a search finds older ones. Yours are used with your key alone, those of a project with its keys."
    : "The newest memories of your project; a search finds older ones. The owner of this endpoint sees them too.";
  $("memories").showModal();
  await load();
  if (owner) drawProjects();
}

export function setUpMemories() {
  let wait = 0;
  $("memoriesButton").addEventListener("click", open);
  $("memoryQuery").addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(load, SEARCH_WAIT_MS); });
  for (const id of ["memoryKind", "memoryProject"]) $(id).addEventListener("change", load);
  $("memoriesMore").addEventListener("click", () => { shown += PAGE; draw(); });
  $("forgetAll").addEventListener("click", forgetAll);
}
