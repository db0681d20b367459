// Looks at a node's status page while the node serves turns. The node runs the test engine, which repeats the message.
//
//   node scripts/page/test_status.mjs --bin target/debug --chromium /usr/bin/chromium [--screenshots FOLDER]

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { parseArgs } from "node:util";

import { chromium } from "playwright-core";

const { values } = parseArgs({
  options: { bin: { type: "string" }, chromium: { type: "string" }, screenshots: { type: "string" } },
});
const READY_MS = 60_000;
const SLOTS = 2;
const folder = mkdtempSync(join(tmpdir(), "baton-status-"));
const programs = [];
const talking = new AbortController();
let browser, page, url, serve, key, node, load;

/** Starts a program that prints one JSON line when it is ready. */
async function start(name, ...options) {
  const program = spawn(join(values.bin, name), options, { stdio: ["ignore", "pipe", "ignore"] });
  programs.push(program);
  const lines = createInterface({ input: program.stdout });
  const line = await Promise.race([
    new Promise((done) => lines.once("line", done)),
    new Promise((_, fail) => setTimeout(() => fail(new Error(`${name} was not ready`)), READY_MS).unref()),
  ]);
  return { program, ready: JSON.parse(line) };
}

async function stop(program) {
  if (program.exitCode !== null || program.signalCode !== null) return;
  const ended = new Promise((done) => program.once("exit", done));
  program.kill("SIGTERM");
  setTimeout(() => program.kill("SIGKILL"), 5000).unref();
  await ended;
}

const startNode = (name, store, ...more) => start("baton-node", "run", "--json", "--engine", "echo", "--mdns", "false", "--own-networks", "127.0.0.0/8",
  "--data-dir", join(folder, name), "--listen", "/ip4/127.0.0.1/tcp/0,/ip4/127.0.0.1/udp/0/quic-v1", "--admin", "127.0.0.1:0",
  "--publisher", store, "--shards", "10", ...more);

/** Says something, in a session of its own or in the last one. */
function say(text, session = "new") {
  return fetch(`${serve}/chat/completions`, {
    method: "POST",
    signal: talking.signal,
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json", "x-baton-session": session },
    body: JSON.stringify({ model: "echo", messages: [{ role: "user", content: text }] }),
  }).then((response) => response.text());
}

/** Keeps talking, now more and now less, so that the plot has a shape; every other round goes on with a session. */
async function keepTalking() {
  for (let round = 0; !talking.signal.aborted; round++) {
    const words = (index) => `${"word ".repeat(20 + 40 * (round % 3))}${index}`;
    const turns = Array.from({ length: [1, 3, 1, 4][round % 4] }, (_, index) => say(words(index), round % 2 || !round ? "new" : "last"));
    await Promise.allSettled(turns);
    if (round % 4 === 3) await new Promise((done) => setTimeout(done, 1500));
  }
}

before(async () => {
  const { ready: store } = await start("baton-testnet", "store", "--data-dir", join(folder, "store"), "--listen", "127.0.0.1:0", "--shards", "10", "--json");
  node = await startNode("one", store.url, "--slots", String(SLOTS), "--echo-delay-ms", "25", "--turns-per-minute", "2000");
  // Known to the first node alone: the client, which would find it through the network, talks to the first one.
  await startNode("two", store.url, "--bootstrap", node.ready.listen[0], "--discovery", "false");
  const config = ["--home", join(folder, "home"), "--node", node.ready.listen[0], "--publisher", store.url, "--shards", "10"];
  const { ready: served } = await start("baton", "serve", "--listen", "127.0.0.1:0", "--allow-echo", "--json", ...config);
  serve = served.url;
  key = readFileSync(served.key_file, "utf8").trim();
  url = `http://${node.ready.admin}/`;
  browser = await chromium.launch({ executablePath: values.chromium, args: ["--no-sandbox"] });
  const context = await browser.newContext({ viewport: { width: 1100, height: 900 } });
  page = await context.newPage();
  page.elsewhere = [];
  page.complaints = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(url) && !/^(data|blob):/.test(request.url())) page.elsewhere.push(request.url());
  });
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && page.complaints.push(message.text()));
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  page.setDefaultTimeout(30_000);
});

after(async () => {
  talking.abort();
  await load;
  await browser?.close();
  for (const program of programs.reverse()) await stop(program);
  rmSync(folder, { recursive: true, force: true });
});

/** The figure of a tile, and what stands below it. */
const tile = async (name) => {
  const found = page.locator("#tiles > div", { has: page.getByText(name, { exact: true }) });
  return found.locator("dd").allTextContents();
};

async function until(what, condition) {
  const end = Date.now() + 60_000;
  for (;;) {
    const value = await condition();
    if (value) return value;
    assert.ok(Date.now() < end, `${what} did not come about`);
    await page.waitForTimeout(250);
  }
}

test("it says which node this is, what it serves, and that it is ready", async () => {
  await page.goto(url);
  await page.getByText("✓ ready").waitFor();
  assert.match(await page.title(), /ready · Baton node/);
  assert.equal(await page.locator("#node").textContent(), node.ready.node.slice(0, 16));
  assert.match(await page.locator("#models").textContent(), /echo.*echo engine, 4,096 tokens of context/);
  assert.match(await page.locator("#listen").textContent(), new RegExp(node.ready.peer_id));
  assert.match(await page.locator("#store").textContent(), /http:\/\/127\.0\.0\.1:\d+.*answers/);
  await until("the other node", async () => Number((await tile("Peers connected"))[0]) >= 1);
  assert.deepEqual((await tile("Turns served"))[0], "0");
});

test("figures and plots move with the turns", async () => {
  load = keepTalking();
  await page.getByLabel("1 min", { exact: true }).check();
  await until("a running turn", async () => (await tile("Turns running"))[0] === `${SLOTS} of ${SLOTS}`);
  await until("a served turn", async () => Number((await tile("Turns served"))[0]) > 3);
  const [speed] = await until("speed", async () => {
    const figures = await tile("Tokens per second");
    return Number(figures[0]) > 5 && figures;
  });
  assert.ok(Number(speed) < 1000, speed);
  await until("a first token", async () => /^[\d.]+ s$/.test((await tile("First token after"))[0]));
  const line = () => page.locator("#speed path.line").getAttribute("d");
  const heights = (path) => new Set([...path.matchAll(/,([\d.]+)/g)].map((match) => match[1])).size;
  const earlier = await until("a plot with a shape", async () => {
    const path = await line();
    return heights(path) >= 5 && path;
  });
  await until("another plot", async () => (await line()) !== earlier);
  assert.ok((await page.locator("#load path.line").count()) === 2);
  // From the request, or from the node's own journal where the blob was stored before the next turn began.
  await until("a history", async () => /(the request|journal)[1-9]/.test(await page.locator("#sources").textContent()));
  const plot = await page.locator("#speed").boundingBox();
  await page.mouse.move(plot.x + plot.width - 60, plot.y + 60);
  await page.locator("#read", { hasText: /^\d\d?:\d\d:\d\d/ }).waitFor();
  await page.mouse.move(5, 5);
  await page.locator("#read", { hasText: /^now: / }).waitFor();
});

test("the plots are told in words, and as a table", async () => {
  assert.match(await page.locator("#speedText").textContent(), /The last minute: on average [\d.,]+ tokens per second, at most/);
  assert.match(await page.locator("#loadText").textContent(), /at most 2 turns running and/);
  await page.getByText("The same as a table").click();
  const rows = page.locator("#table tr");
  assert.ok((await rows.count()) >= 2, "rows for the time so far");
  assert.match(await rows.first().textContent(), /\d/);
  await page.getByText("The same as a table").click();
});

test("the keyboard alone is enough, and every control has a name", async () => {
  await page.reload();
  await until("some samples", async () => Number(await page.locator("#moment").getAttribute("max")) >= 8);
  await page.locator("#speed path.line").waitFor({ state: "attached" });
  const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.name || document.activeElement.className || document.activeElement.tagName);
  const order = [];
  for (let step = 0; step < 8; step++) {
    await page.keyboard.press("Tab");
    order.push(await focused());
  }
  for (const place of ["skip", "span", "moment", "SUMMARY"]) assert.ok(order.includes(place), `${place} in ${order}`);
  await page.getByLabel("5 min", { exact: true }).focus();
  await page.keyboard.press("ArrowLeft");
  assert.ok(await page.getByLabel("1 min", { exact: true }).isChecked());
  const moment = page.getByRole("slider", { name: "Moment" });
  await moment.focus();
  assert.match(await moment.getAttribute("aria-valuetext"), /^now: /);
  for (let step = 0; step < 5; step++) await page.keyboard.press("ArrowLeft");
  const told = await moment.getAttribute("aria-valuetext");
  assert.match(told, /^\d\d?:\d\d:\d\d.*: [\d.]+ tokens? per second, \d+ turns? running, \d+ waiting$/);
  assert.equal(await page.locator("#read").textContent(), told);
  assert.equal(await page.locator("line.cursor").count(), 2);
  await page.keyboard.press("End");
  assert.match(await moment.getAttribute("aria-valuetext"), /^now: /);
  for (const control of await page.locator("input, summary, a").all()) {
    const name = await control.evaluate((one) => one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.[0]?.textContent.trim());
    assert.ok(name, await control.evaluate((one) => one.outerHTML));
  }
});

test("it fits a narrow window and a dark one", async () => {
  await page.evaluate(() => { document.activeElement.blur(); scrollTo(0, 0); });
  if (values.screenshots) await until("a minute to see", async () => Number((await tile("Turns served"))[0]) >= 30);
  if (values.screenshots) await page.screenshot({ path: join(values.screenshots, "status-page.png"), fullPage: true });
  await page.emulateMedia({ colorScheme: "dark" });
  if (values.screenshots) await page.screenshot({ path: join(values.screenshots, "status-page-dark.png"), fullPage: true });
  await page.setViewportSize({ width: 360, height: 760 });
  await page.waitForTimeout(300);
  const [content, window] = await page.evaluate(() => [document.scrollingElement.scrollWidth, innerWidth]);
  assert.ok(content <= window, `${content} of ${window} pixels`);
  const plot = await page.locator("#speed").boundingBox();
  assert.ok(plot.x >= 0 && plot.x + plot.width <= window && plot.width > 250);
  if (values.screenshots) await page.screenshot({ path: join(values.screenshots, "status-page-narrow.png"), fullPage: true });
  await page.setViewportSize({ width: 1100, height: 900 });
  await page.emulateMedia({ colorScheme: "light" });
});

test("nothing was asked of anybody else, and the browser has no complaint", () => {
  assert.deepEqual(page.elsewhere, []);
  assert.deepEqual(page.complaints, []);
});

test("it shows that the node drains, and then that it is gone", async () => {
  // Ten seconds of words, so that the page has the time to see the node drain.
  const before = Date.now();
  void say("word ".repeat(400)).catch(() => {});
  await until("a running turn", async () => Date.now() > before + 2000 && (await tile("Turns running"))[0] !== `0 of ${SLOTS}`);
  node.program.kill("SIGTERM");
  await page.locator("#state", { hasText: "draining" }).waitFor();
  await page.getByText("the node is stopping").waitFor();
  talking.abort();
  await page.locator("#state", { hasText: "✗ no answer" }).waitFor();
  assert.match(await page.locator("#notice").textContent(), /The node does not answer; these figures are of \d/);
});
