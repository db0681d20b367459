// The status page of a node. It reads /status and /metrics each second, and plots what it has read since it was opened.

const $ = (id) => document.getElementById(id);
const ASK_EVERY_MS = 1000;
const KEPT_MS = 10 * 60_000; // the longest time that is shown
const ANSWER_WITHIN_MS = 5000;
const SPEED_OVER_MS = 10_000; // the figure beside the plot is the mean of so much
const TABLE_ROWS = 10;
const LEFT = 44; // room for the numbers beside a plot
const SOURCES = {
  inline: "the request", journal: "this node's journal", cache: "this node's cache", store: "the store",
  author: "its author's node", peer: "other nodes",
};

let samples = []; // the oldest first
let startedMs = 0; // of the node's run that they are of
let spanMs = 5 * 60_000;
let chosen = null; // uptime of the moment that is read out; none for the newest
let lastAnswer = 0;

const whole = new Intl.NumberFormat();
const few = new Intl.NumberFormat([], { maximumFractionDigits: 1 });
const number = (value) => (value < 100 ? few : whole).format(value);
const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const plural = (count, thing) => `${whole.format(count)} ${thing}${count === 1 ? "" : "s"}`;

function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor(seconds / 3600) % 24} h`;
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function shape(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Sets a text only where it changes: what stays the same is not read out again. */
function say(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

async function ask(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
  if (!response.ok) throw new Error(`the node answered ${response.status}`);
  return response;
}

/** How fast a total grew between two samples, by the second. */
function rate(before, after, field) {
  const ms = after.uptime_ms - before.uptime_ms;
  return ms > 0 ? ((after[field] - before[field]) * 1000) / ms : 0;
}

/** The last sample that is at least so old, or the oldest. */
function ago(ms) {
  const at = samples.at(-1).uptime_ms - ms;
  return samples.findLast((sample) => sample.uptime_ms <= at) ?? samples[0];
}

/** What the plots show: each sample of the time shown that has one before it, with the speed since that. */
function shown() {
  const newest = samples.at(-1)?.uptime_ms ?? 0;
  const points = [];
  for (let index = 1; index < samples.length; index++) {
    const sample = samples[index];
    if (sample.uptime_ms < newest - spanMs) continue;
    points.push({ ...sample, before: samples[index - 1], speed: rate(samples[index - 1], sample, "tokens") });
  }
  return points;
}

// ---- Figures

function tile(name, value, more, kind = "") {
  return element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value, className: kind }),
    element("dd", { textContent: more }));
}

function showTiles(status) {
  const { turns, peers, store } = status;
  const newest = samples.at(-1);
  const window = ago(spanMs);
  const points = shown();
  const firsts = newest.first_tokens - window.first_tokens;
  const firstMs = newest.first_token_ms - window.first_token_ms;
  const minutes = `${spanMs / 60_000} min`;
  const peak = Math.max(0, ...points.map((point) => point.speed));
  const answered = store.answered_seconds_ago;
  const tiles = [
    tile("Tokens per second", number(rate(ago(SPEED_OVER_MS), newest, "tokens")), `at most ${number(peak)} in ${minutes}`),
    tile("Turns running", `${turns.running} of ${status.slots}`, `${turns.waiting} waiting, room for ${status.queue}`),
    tile("Turns served", whole.format(turns.committed), `${whole.format(newest.committed - ago(60_000).committed)} in the last minute`),
    tile("First token after", firsts ? `${number(firstMs / firsts / 1000)} s` : "–", firsts ? `mean of ${plural(firsts, "turn")} in ${minutes}` : `no turn in ${minutes}`),
    tile("Requests refused", whole.format(turns.refused), `${plural(turns.failed, "turn")} failed`),
    tile("Peers connected", whole.format(peers.connected), `${whole.format(peers.known)} known`),
    tile("Store", store.reachable ? "✓ answers" : "✗ silent",
      answered === null ? "it never answered" : answered < 5 ? "answered just now" : `answered ${duration(answered)} ago`, store.reachable ? "good" : "bad"),
    tile("Memory in use", status.resident_bytes === null ? "–" : `${whole.format(Math.round(status.resident_bytes / 1e6))} MB`, "of this process"),
  ];
  $("tiles").replaceChildren(...tiles);
}

function showState(status) {
  const [word, kind] = status.ready ? ["✓ ready", "good"] : status.draining ? ["draining", "warn"] : ["✗ not ready", "bad"];
  say($("state"), word);
  $("state").className = `badge ${kind}`;
  say($("node"), status.node.slice(0, 16));
  $("node").title = `${status.node}\n${status.peer_id}`;
  say($("version"), `version ${status.version}`);
  say($("uptime"), `up ${duration(status.uptime_seconds)}`);
  document.title = `${word} · Baton node`;
  notice(status.not_ready.join("; "), status.draining ? "" : "bad");
}

function notice(text, kind = "") {
  say($("notice"), text);
  $("notice").className = kind;
  $("notice").hidden = !text;
}

function showLists(status, sources) {
  const item = (name, ...sub) => element("li", {}, name, ...sub.map((text) => element("span", { className: "sub" }, text)));
  const none = (text) => [element("li", { className: "sub", textContent: text })];
  const models = status.models.map((model) => item(element("span", { className: "name", textContent: model.name }),
    `${model.engine} engine, ${whole.format(model.context_tokens)} tokens of context`,
    element("code", { textContent: model.model })));
  $("models").replaceChildren(...(models.length ? models : none("The model is being fetched or loaded.")));
  const listen = status.listen.map((address) => element("li", {}, element("code", { textContent: address })));
  $("listen").replaceChildren(...(listen.length ? listen : none("No address is listened on.")));
  const { store } = status;
  const pairs = [["Written to", store.publishers.join(", ")], ["Read from", store.aggregators.join(", ")],
    ["State", store.reachable ? "answers" : "does not answer: turns are kept in the journal until it does"]];
  $("store").replaceChildren(...pairs.flatMap(([name, value]) =>
    [element("dt", { textContent: name }), element("dd", { textContent: value })]));
  $("sources").replaceChildren(...sources.map((row) => element("tr", {},
    element("th", { scope: "row", textContent: SOURCES[row.source] ?? row.source }),
    ...[row.right, row.missing, row.failed, row.wrong].map((count, index) =>
      element("td", { textContent: whole.format(count), className: index > 1 && count ? "bad" : "" })))));
}

// ---- Plots

/** A round number at or above `most`, and the steps to it. */
function scale(most) {
  const rough = Math.max(most, 1) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough));
  return { step, top: Math.ceil(Math.max(most, 1) / step) * step };
}

/** The frame of a plot, and where things go in it. */
function frame(svg, height, most, times) {
  const width = Math.max(svg.parentElement.clientWidth, 200);
  const { step, top } = scale(most);
  const bottom = height - (times ? 20 : 6);
  const newest = samples.at(-1)?.uptime_ms ?? 0;
  const x = (uptime) => LEFT + ((uptime - newest + spanMs) / spanMs) * (width - LEFT - 8);
  const y = (value) => bottom - (value / top) * (bottom - 10);
  const parts = [];
  for (let value = 0; value <= top; value += step) {
    parts.push(shape("line", { class: value ? "grid" : "base", x1: LEFT, x2: width - 8, y1: y(value), y2: y(value) }),
      shape("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, whole.format(value)));
  }
  const marks = width < 480 ? 2 : spanMs > 60_000 ? 5 : 4;
  for (let part = 0; times && part <= marks; part++) {
    const before = (spanMs / 60_000) * (1 - part / marks);
    const text = part === marks ? "now" : before >= 1 ? `−${few.format(before)} min` : `−${Math.round(before * 60)} s`;
    const anchor = part === 0 ? "start" : part === marks ? "end" : "middle";
    parts.push(shape("text", { x: x(newest - before * 60_000), y: height - 3, "text-anchor": anchor }, text));
  }
  if (newest < spanMs) {
    const word = times || x(0) < LEFT + 60 ? "" : "started";
    parts.push(shape("line", { class: "edge", x1: x(0), x2: x(0), y1: 10, y2: bottom }),
      shape("text", { x: x(0) - 5, y: 20, "text-anchor": "end" }, word));
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  return { x, y, bottom, parts };
}

/** One value of the points as a line with the area below it; `stepped` holds each value until the next. */
function line(points, { x, y, bottom, parts }, value, kind, stepped) {
  if (!points.length) return;
  const place = (point) => `${x(point.uptime_ms).toFixed(1)},${y(value(point)).toFixed(1)}`;
  const path = points.map((point, index) =>
    stepped && index ? `H${x(point.uptime_ms).toFixed(1)}V${y(value(point)).toFixed(1)}` : `${index ? "L" : "M"}${place(point)}`).join("");
  const ends = [points.at(-1), points[0]].map((point) => x(point.uptime_ms).toFixed(1));
  parts.push(shape("path", { class: `area ${kind}`, d: `${path}L${ends[0]},${bottom}L${ends[1]},${bottom}Z` }),
    shape("path", { class: `line ${kind}`, d: path }));
}

function draw() {
  const points = shown();
  const input = $("moment");
  const found = chosen === null ? -1 : points.findIndex((point) => point.uptime_ms >= chosen);
  const follows = found < 0;
  input.max = Math.max(points.length - 1, 0);
  input.value = follows ? input.max : found;
  const at = points[Number(input.value)];
  const most = (value) => Math.max(0, ...points.map(value));

  const speed = frame($("speed"), 190, most((point) => point.speed), false);
  line(points, speed, (point) => point.speed, "made", false);
  const load = frame($("load"), 96, most((point) => Math.max(point.running, point.waiting)), true);
  line(points, load, (point) => point.running, "ran", true);
  line(points, load, (point) => point.waiting, "waited", true);
  if (at && !follows) {
    for (const one of [speed, load]) {
      one.parts.push(shape("line", { class: "cursor", x1: one.x(at.uptime_ms), x2: one.x(at.uptime_ms), y1: 10, y2: one.bottom }));
    }
  }
  if (at) speed.parts.push(shape("circle", { class: "dot", cx: speed.x(at.uptime_ms), cy: speed.y(at.speed), r: 4 }));
  tell(points);
  $("speed").replaceChildren($("speedText"), ...speed.parts);
  $("load").replaceChildren($("loadText"), ...load.parts);
  readOut(at, follows);
}

/** The plots in words, for whoever does not see them. */
function tell(points) {
  if (!points.length) return;
  const minutes = spanMs > 60_000 ? `${spanMs / 60_000} minutes` : "minute";
  const peak = points.reduce((best, point) => (point.speed > best.speed ? point : best));
  say($("speedText"), `The last ${minutes}: on average ${number(rate(points[0].before, points.at(-1), "tokens"))} tokens per second, at most ${number(peak.speed)} at ${time(peak)}, now ${number(points.at(-1).speed)}.`);
  say($("loadText"), `The last ${minutes}: at most ${Math.max(...points.map((point) => point.running))} turns running and ${Math.max(...points.map((point) => point.waiting))} waiting.`);
}

const time = (point) => clock.format(new Date(startedMs + point.uptime_ms));

function readOut(point, isNewest) {
  if (!point) return;
  const text = `${isNewest ? "now" : time(point)}: ${number(point.speed)} tokens per second, ${plural(point.running, "turn")} running, ${point.waiting} waiting`;
  say($("read"), text);
  $("moment").setAttribute("aria-valuetext", text);
}

function showTable() {
  const newest = samples.at(-1).uptime_ms;
  const points = shown();
  const rows = [];
  for (let row = 0; row < TABLE_ROWS; row++) {
    const to = newest - (row * spanMs) / TABLE_ROWS;
    const part = points.filter((point) => point.uptime_ms <= to && point.uptime_ms > to - spanMs / TABLE_ROWS);
    if (!part.length) continue;
    const { before } = part[0];
    const last = part.at(-1);
    const mean = (field) => number(part.reduce((sum, point) => sum + point[field], 0) / part.length);
    const cells = [number(rate(before, last, "tokens")), number(Math.max(...part.map((point) => point.speed))),
      mean("running"), mean("waiting"), whole.format(last.committed - before.committed)];
    rows.push(element("tr", {}, element("th", { scope: "row", textContent: time(last) }),
      ...cells.map((text) => element("td", { textContent: text }))));
  }
  $("table").replaceChildren(...rows);
}

// ---- Keeping up

/** The values of /metrics by series, without the prefix of their names. */
function series(text) {
  const lines = text.matchAll(/^baton_([^ #]+) (\S+)$/gm);
  return new Map(Array.from(lines, ([, name, value]) => [name, Number(value)]));
}

function take(status, metrics) {
  const total = (name) => metrics.get(name) ?? 0;
  const now = Date.now();
  // A later start is another run of the node, with totals from zero.
  const started = now - status.uptime_seconds * 1000;
  if (started > startedMs + 5000) [samples, startedMs] = [[], started];
  samples.push({
    uptime_ms: now - startedMs,
    tokens: total("tokens_made_total"),
    first_tokens: total("first_token_seconds_count"),
    first_token_ms: total("first_token_seconds_sum") * 1000,
    ...status.turns,
  });
  while (samples[0].uptime_ms < now - startedMs - KEPT_MS) samples.shift();
}

/** Where the node found the blobs of histories. */
function sourcesOf(metrics) {
  return Object.keys(SOURCES).map((source) => {
    const of = (content) => metrics.get(`blobs_total{source="${source}",content="${content}"}`) ?? 0;
    return { source, right: of("right"), missing: of("missing"), failed: of("failed"), wrong: of("wrong") };
  });
}

let answer = null; // what the node said last

async function look() {
  try {
    const [status, metrics] = await Promise.all([
      ask("/status").then((response) => response.json()),
      ask("/metrics").then((response) => response.text()).then(series),
    ]);
    take(status, metrics);
    answer = { status, sources: sourcesOf(metrics) };
    lastAnswer = Date.now();
    document.body.classList.remove("stale");
    show();
  } catch {
    document.body.classList.add("stale");
    say($("state"), "✗ no answer");
    $("state").className = "badge bad";
    document.title = "✗ no answer · Baton node";
    notice(lastAnswer ? `The node does not answer; these figures are of ${clock.format(new Date(lastAnswer))}.` : "The node does not answer.", "bad");
  }
}

function show() {
  if (!answer) return;
  showState(answer.status);
  showLists(answer.status, answer.sources);
  if (!samples.length) return;
  showTiles(answer.status);
  draw();
  showTable();
}

async function keepUp() {
  await look();
  setTimeout(keepUp, ASK_EVERY_MS);
}

/** Reads out this point of the plots from now on, or the newest. */
function choose(point) {
  chosen = point && point.uptime_ms < samples.at(-1).uptime_ms ? point.uptime_ms : null;
  draw();
}

$("moment").addEventListener("input", () => choose(shown()[Number($("moment").value)]));
$("plots").addEventListener("pointermove", (event) => {
  const points = shown();
  const box = $("speed").getBoundingClientRect();
  if (!points.length || event.pointerType === "touch") return;
  const at = samples.at(-1).uptime_ms - spanMs + ((event.clientX - box.left - LEFT) / (box.width - LEFT - 8)) * spanMs;
  choose(points.reduce((best, point) => (Math.abs(point.uptime_ms - at) < Math.abs(best.uptime_ms - at) ? point : best)));
});
$("plots").addEventListener("pointerleave", () => samples.length && choose(null));
for (const input of document.querySelectorAll("[name=span]")) {
  input.addEventListener("change", () => {
    spanMs = Number(input.value) * 60_000;
    chosen = null;
    show();
  });
}
new ResizeObserver(() => samples.length && draw()).observe($("plots"));
keepUp();
