// The chat page of `baton serve`. It holds no conversation beyond what it shows: sessions are the endpoint's.

const $ = (id) => document.getElementById(id);
const SHORT = 8;

/** The key: from the link's fragment, which no server sees, then for this tab alone. */
function takeKey() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given) {
    sessionStorage.setItem("key", given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("key") ?? "";
}

let key = takeKey();
let current = null; // the session's id; none for one that begins with the next message
let shown = null; // what the endpoint last said of it
let running = null; // the AbortController of the answer under way

class Fault extends Error {
  constructor(status, error) {
    super(error?.message ?? `the endpoint answered ${status}`);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const headers = { authorization: `Bearer ${key}`, ...options.headers };
  const response = await fetch(path, { ...options, headers });
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new Fault(response.status, body?.error);
  }
  return response;
}

const json = async (path, options) => (await ask(path, options)).json();

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function notice(text, kind = "") {
  const place = $("notice");
  place.textContent = text;
  place.className = kind;
  place.hidden = !text;
}

const size = new Intl.NumberFormat();
const plural = (number, thing) => `${size.format(number)} ${thing}${number === 1 ? "" : "s"}`;

function when(ms) {
  const date = new Date(ms);
  const today = new Date().toDateString() === date.toDateString();
  return today ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : date.toLocaleDateString();
}

/** Text as paragraphs and code, never as markup. */
function rendered(text) {
  return text.split(/^```.*$/m).map((part, index) => {
    const trimmed = part.replace(/^\n+|\n+$/g, "");
    return index % 2 ? element("pre", {}, element("code", { textContent: trimmed })) : element("p", { textContent: trimmed });
  }).filter((part) => part.textContent);
}

function facts(turn) {
  const receipt = turn.receipt ?? {};
  const seconds = (ms) => (ms === undefined ? undefined : `${(ms / 1000).toFixed(2)} s`);
  const pairs = {
    "Turn": turn.seq, "Node": turn.node, "Time": new Date(turn.time_ms).toLocaleString(), "Model": receipt.model,
    "Engine": receipt.engine, "Tokens read": receipt.input_tokens, "Tokens written": receipt.output_tokens,
    "Memories used": receipt.memory_items, "Seed": receipt.seed, "Price": receipt.price,
    "First token": seconds(receipt.first_token_ms), "Writing": seconds(receipt.decode_ms),
    "Receipt": receipt.hash ?? "none: the session was recovered from its root", "Link": turn.link,
    "Stored": turn.stored ? "yes" : "not yet", "Acknowledged": turn.acked ? "yes" : "not yet",
  };
  const list = Object.entries(pairs).filter(([, value]) => value !== undefined);
  $("facts").replaceChildren(...list.flatMap(([name, value]) =>
    [element("dt", { textContent: name }), element("dd", { textContent: value })]));
  $("details").showModal();
}

/** A turn of the conversation: what was said, the answer, and by whom. */
function turnView(turn) {
  const view = element("article", { className: "turn" });
  for (const message of turn.messages ?? []) {
    if (message.role === "user") {
      view.append(element("div", { className: "said", textContent: message.content }));
    } else if (message.role === "assistant") {
      view.append(element("div", { className: "answer" }, ...rendered(message.content)));
    } else {
      view.append(element("div", { className: "quiet", textContent: `${message.role}: ${message.content}` }));
    }
  }
  const receipt = element("button", { type: "button", textContent: "receipt" });
  receipt.addEventListener("click", () => facts(turn));
  const node = element("code", { textContent: turn.node.slice(0, SHORT), title: turn.node });
  view.append(element("p", { className: "marks" },
    element("span", { className: "good", textContent: "✓ verified" }),
    element("span", {}, "node ", node),
    turn.receipt ? element("span", { textContent: plural(turn.receipt.output_tokens, "token") }) : "",
    element("span", { textContent: turn.stored ? "stored" : "being stored" }),
    receipt));
  return view;
}

function pendingView(messages) {
  const again = element("button", { type: "button", textContent: "ask again" });
  again.addEventListener("click", () => say(messages));
  const drop = element("button", { type: "button", textContent: "give it up" });
  drop.addEventListener("click", () => act(async () => {
    await ask(`/api/sessions/${current}/abandon`, { method: "POST" });
    await open(current);
  }));
  return element("article", { className: "turn" },
    ...messages.map((message) => element("div", { className: "said", textContent: message.content })),
    element("p", { className: "marks" }, element("span", { className: "bad", textContent: "not answered" }), again, drop));
}

function show() {
  const log = $("log");
  const turns = shown?.turns ?? [];
  const views = turns.map(turnView);
  if (shown?.pending) views.push(pendingView(shown.pending));
  if (!views.length) {
    views.push(element("p", { className: "empty", textContent: "What you say is sealed to the node that answers it, and kept as your session." }));
  }
  log.replaceChildren(...views);
  log.scrollTop = log.scrollHeight;
  $("actions").hidden = !turns.length;
  $("title").textContent = titleOf(current) || "New conversation";
  document.title = titleOf(current) ? `${titleOf(current)} · Baton` : "Baton";
  if (shown?.trouble) notice(`The head index: ${shown.trouble}. Your copy is kept; export it before you go on.`, "bad");
}

let listed = [];
const titleOf = (id) => listed.find((session) => session.id === id)?.title ?? "";

async function list() {
  listed = (await json("/api/sessions")).sessions;
  $("sessions").replaceChildren(...listed.map((session) => {
    const button = element("button", { type: "button" },
      element("span", { className: "name", textContent: session.title || "(nothing answered yet)" }),
      element("span", { className: "when", textContent: `${plural(session.turns, "turn")} · ${when(session.used_ms)}` }));
    if (session.id === current) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => {
      if (narrow.matches) toggle(true);
      act(() => open(session.id));
    });
    return element("li", {}, button);
  }));
}

/** Counts what is put on the screen: an answer of the endpoint that comes after a newer step is not shown. */
let step = 0;

async function open(id) {
  running?.abort();
  notice("");
  current = id;
  const here = ++step;
  const loaded = id ? await json(`/api/sessions/${id}`) : null;
  if (here !== step) return;
  shown = loaded;
  show();
  $("message").focus();
  await list();
  if (here === step) show();
}

/** Reads server-sent events. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

/** Says something in the current session, or in a new one, and shows the answer as it comes. */
async function say(messages) {
  if (running) return;
  notice("");
  const controller = new AbortController();
  running = controller;
  step++;
  busy(true);
  const answer = element("div", { className: "answer working" });
  const text = element("p");
  answer.append(text);
  const view = element("article", { className: "turn" },
    ...messages.map((message) => element("div", { className: "said", textContent: message.content })), answer);
  const log = $("log");
  if (shown?.pending) log.lastElementChild.remove();
  if (!shown?.turns.length) log.replaceChildren();
  log.append(view);
  log.scrollTop = log.scrollHeight;
  let here = current;
  try {
    if (!here) {
      here = (await json("/api/sessions", { method: "POST" })).id;
      current ??= here;
    }
    const body = { messages, stream: true, model: $("model").value || undefined };
    const response = await ask("/v1/chat/completions", {
      method: "POST", body: JSON.stringify(body), signal: controller.signal,
      headers: { "content-type": "application/json", "x-baton-session": here },
    });
    for await (const event of events(response)) {
      if (event.error) throw new Fault(502, event.error);
      const follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
      text.textContent += event.choices?.[0]?.delta?.content ?? "";
      if (follow) log.scrollTop = log.scrollHeight;
    }
  } catch (fault) {
    if (controller.signal.aborted) notice("Stopped. The message is kept until you give it up or say something else.");
    else notice(`${fault.message}`, "bad");
    if (fault.status === 401) askKey();
  } finally {
    running = null;
    busy(false);
    answer.classList.remove("working");
  }
  // Another conversation may have been opened meanwhile.
  if (!here || current !== here) return;
  const said = $("notice").textContent, kind = $("notice").className;
  if (!await settle()) return;
  notice(said, kind);
  const last = messages.at(-1).content;
  const kept = shown?.pending ?? shown?.turns.at(-1)?.messages ?? [];
  // Stopped before the endpoint had it.
  if (!kept.some((message) => message.content === last) && !$("message").value) {
    $("message").value = last;
    fit();
  }
}

/**
 * Shows the endpoint's state of the session, unless a newer step came first; returns whether it did. A stopped turn is
 * released a moment after its connection.
 */
async function settle() {
  const here = step;
  for (let tries = 0; current && tries < 20; tries++) {
    try {
      const loaded = await json(`/api/sessions/${current}`);
      if (here !== step) return false;
      shown = loaded;
      break;
    } catch (fault) {
      if (fault.status !== 409) throw fault;
      await new Promise((done) => setTimeout(done, 100));
      if (here !== step) return false;
    }
  }
  await list();
  if (here !== step) return false;
  show();
  return true;
}

function busy(is) {
  $("send").disabled = is;
  $("stop").hidden = !is;
  $("log").setAttribute("aria-busy", String(is));
}

/** Does something that may fail, and tells how. */
async function act(work) {
  try {
    await work();
  } catch (fault) {
    if (fault.status === 401) askKey(key ? "This key is not the one." : "");
    else notice(fault.message, "bad");
  }
}

function askKey(error = "") {
  $("keyError").textContent = error;
  if (!$("keyDialog").open) $("keyDialog").showModal();
}

async function network() {
  const nodes = (await json("/api/nodes")).nodes;
  const models = [...new Set(nodes.flatMap((node) => node.models))].sort();
  $("network").textContent = nodes.length ? plural(nodes.length, "node") : "no node was found";
  const chosen = $("model").value;
  $("model").replaceChildren(element("option", { value: "", textContent: "any" }),
    ...models.map((model) => element("option", { value: model, textContent: model })));
  if (models.includes(chosen)) $("model").value = chosen;
}

const narrow = matchMedia("(max-width: 44rem)");

/** Hides the conversations, or shows them. */
function toggle(close) {
  const closed = $("app").classList.toggle("closed", close);
  $("toggle").setAttribute("aria-expanded", String(!closed));
}

function fit() {
  const box = $("message");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function send() {
  const text = $("message").value;
  if (!text.trim() || running) return;
  $("message").value = "";
  fit();
  act(() => say([{ role: "user", content: text }]));
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("message").addEventListener("input", fit);
$("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => act(() => open(null)));
$("toggle").addEventListener("click", () => toggle());
$("verify").addEventListener("click", () => act(async () => {
  notice("Verifying every link, record, receipt and blob…");
  const report = await json(`/api/sessions/${current}/verify?full=true`, { method: "POST" });
  const wrong = report.problems.map((problem) => `turn ${problem.turn}: ${problem.code}`).join(", ");
  const missing = report.not_stored.length ? `; ${plural(report.not_stored.length, "blob")} not in the store yet` : "";
  if (report.good) notice(`✓ ${plural(report.turns, "turn")}, ${plural(report.receipts_checked, "receipt")} and ${plural(report.ids_checked, "blob ID")} verified${missing}`, "good");
  else notice(`Not as it was signed: ${wrong}`, "bad");
}));
$("export").addEventListener("click", () => act(async () => {
  const response = await ask(`/api/sessions/${current}/export`);
  const link = element("a", { href: URL.createObjectURL(await response.blob()), download: `session-${current.slice(0, SHORT)}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}));
$("delete").addEventListener("click", () => {
  $("confirmText").textContent = `Delete “${titleOf(current)}” here and in the head index? What the store has of it stays unreadable.`;
  $("confirm").returnValue = "no";
  $("confirm").showModal();
});
$("confirm").addEventListener("close", () => {
  if ($("confirm").returnValue !== "yes") return;
  act(async () => {
    await ask(`/api/sessions/${current}`, { method: "DELETE" });
    await open(null);
    notice("Deleted.");
  });
});
$("keyForm").addEventListener("submit", () => {
  key = $("key").value.trim();
  sessionStorage.setItem("key", key);
  $("key").value = "";
  begin();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !document.querySelector("dialog[open]")) running.abort();
  if (event.altKey && event.code === "KeyN") { event.preventDefault(); act(() => open(null)); }
});

function begin() {
  act(async () => {
    await open(null);
    await network();
  });
}

toggle(narrow.matches);
narrow.addEventListener("change", () => toggle(narrow.matches));
begin();
