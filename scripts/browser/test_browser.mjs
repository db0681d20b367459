// Uses the browser client in a page without any local program: a key, three nodes of which one is killed in mid-answer, a
// check of all turns, and the session again from its 24 words.
//
//   node scripts/browser/test_browser.mjs --bin target/debug --package FOLDER --browser chromium|firefox --executable /usr/bin/chromium \
//     --over webrtc|websocket
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { networkInterfaces, tmpdir } from "node:os";
import { extname, join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { parseArgs } from "node:util";

import { chromium } from "playwright-core";
import puppeteer from "puppeteer-core";

const option = { type: "string" };
const { values } = parseArgs({ options: { bin: option, package: option, browser: option, executable: option, over: option } });
/** Playwright drives only a Firefox of its own make. */
const LAUNCH = {
  chromium: (executablePath) => chromium.launch({ executablePath, args: ["--no-sandbox"] }),
  firefox: (executablePath) => puppeteer.launch({ browser: "firefox", executablePath }),
};
/** Firefox opens no WebRTC connection to a loopback address. */
const outward = Object.values(networkInterfaces()).flat().find(({ family, internal }) => family === "IPv4" && !internal);
const host = values.browser === "firefox" ? outward?.address : "127.0.0.1";
if (values.over === "webrtc" && !host) {
  console.log("skipped: Firefox reaches nodes by WebRTC only at an address of a network, and this machine has none");
  process.exit(0);
}
/**
 * The address that each node listens on for pages, and the part by which it is known. Firefox opens the WebSockets to an IP
 * address one after the other, and the next one later after each failure: a dead node would hold up those beside it.
 */
const LISTENERS = {
  webrtc: [() => `/ip4/${host}/udp/0/webrtc-direct`, "/webrtc-direct/"],
  websocket: [(number) => `/ip4/127.0.0.${number + 1}/tcp/0/ws`, "/ws/"],
};
const [listener, part] = LISTENERS[values.over];
const here = new URL(".", import.meta.url).pathname;
const folder = mkdtempSync(join(tmpdir(), "baton-browser-"));
const programs = [];
let nodes, store, server, browser, page;
const errors = [];

/** Starts a program that prints one JSON line when it is ready. */
async function start(name, ...options) {
  const program = spawn(join(values.bin, name), options, { stdio: ["ignore", "pipe", "inherit"] });
  programs.push(program);
  const lines = createInterface({ input: program.stdout });
  const line = await Promise.race([
    new Promise((done) => lines.once("line", done)),
    new Promise((_, fail) => setTimeout(() => fail(new Error(`${name} was not ready`)), 60_000).unref()),
  ]);
  return { ...JSON.parse(line), program };
}

async function startNode(number, bootstrap) {
  const listen = ["/ip4/127.0.0.1/tcp/0", listener(number)].flatMap((address) => ["--listen", address]);
  const known = bootstrap ? ["--bootstrap", bootstrap] : [];
  return await start(
    "baton-node", "run", "--json", "--data-dir", join(folder, `node${number}`), "--engine", "echo", "--echo-delay-ms", "50",
    "--mdns", "false", "--own-networks", "127.0.0.0/8", "--admin", "none", "--publisher", store.url, "--aggregator", store.url, ...listen, ...known,
  );
}

/** Serves the page and the package. */
function servePage() {
  const types = { ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm" };
  server = createServer((request, response) => {
    const name = request.url === "/" ? "page.html" : request.url.slice(1);
    const place = name.startsWith("baton_browser") ? values.package : name.startsWith("openai/") ? join(here, "node_modules") : here;
    try {
      const bytes = readFileSync(join(place, name));
      response.writeHead(200, { "content-type": types[extname(name)] ?? "application/octet-stream" }).end(bytes);
    } catch {
      response.writeHead(404).end();
    }
  });
  return new Promise((done) => server.listen(0, "127.0.0.1", () => done(`http://127.0.0.1:${server.address().port}/`)));
}

async function openPage(url) {
  page = await browser.newPage();
  page.on("pageerror", (error) => errors.push(error.stack));
  page.on("console", (message) => { if (message.type() === "error") errors.push(message.text()); });
  await page.exposeFunction("onBatonEvent", (event) => onEvent(event));
  await page.goto(url);
  await page.waitForFunction(() => globalThis.isReady);
}

let onEvent = () => {};
const call = (name, ...args) => page.evaluate(([name, args]) => globalThis.baton[name](...args), [name, args]);
const forPages = (node) => node.listen.find((address) => address.includes(part));
const options = () => ({
  nodes: nodes.map(forPages), aggregator: store.url, shards: store.shards ?? 1000, allowEcho: true,
});

let url;
before(async () => {
  store = await start("baton-testnet", "store", "--listen", "127.0.0.1:0", "--data-dir", join(folder, "store"), "--json");
  const first = await startNode(0);
  const tcp = first.listen.find((address) => /\/tcp\/\d+\/p2p/.test(address));
  nodes = [first, ...await Promise.all([1, 2].map((number) => startNode(number, tcp)))];
  url = await servePage();
  browser = await LAUNCH[values.browser](values.executable);
  await openPage(url);
});
after(async () => {
  await browser?.close();
  server?.close();
  for (const program of programs.reverse()) {
    if (program.exitCode !== null || program.signalCode !== null) continue;
    const ended = new Promise((done) => program.once("exit", done));
    program.kill("SIGTERM");
    await ended;
  }
  rmSync(folder, { recursive: true, force: true });
});

test("a wrong option is refused by its name", async () => {
  const refused = await call("refused", "open", { nodes: ["here"], aggregator: store.url });
  assert.deepEqual([refused.code, refused.isError], ["InvalidOption", true]);
  assert.match(refused.message, /^nodes: here: /);
  assert.match((await call("refused", "open", { nodes: [] })).message, /aggregator/);
});

test("a conversation goes on when its node is killed in mid-answer", { timeout: 120_000 }, async () => {
  await call("open", options());
  for (let found = 0; found < 3; found = (await call("nodes")).length) {
    await new Promise((done) => setTimeout(done, 100));
  }
  assert.match(await call("begin"), /^[\da-f]{64}$/);
  const first = await call("say", "Hello from a page.", { allowEcho: true });
  assert.match(first.answer.text, /Hello from a page\./);
  assert.equal(first.answer.seq, 0);
  let serving, killed;
  onEvent = (event) => {
    if (event.type === "attempt") serving = event.node;
    // Firefox may hand on the first word before the name of its node.
    if (event.type === "text" && serving && !killed) {
      killed = nodes.find((node) => node.node === serving);
      killed.program.kill("SIGKILL");
    }
  };
  const words = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen";
  const { answer, events } = await call("say", words, { allowEcho: true });
  onEvent = () => {};
  assert.ok(killed, "a node served");
  assert.notEqual(answer.node, killed.node);
  assert.ok(answer.attempt >= 1 && events.some((event) => event.type === "failed" && event.node === killed.node));
  assert.match(answer.text, /sixteen/);
  const shown = events.slice(events.findLastIndex((event) => event.type === "restarted") + 1);
  assert.equal(shown.filter((event) => event.type === "text").map((event) => event.text).join(""), answer.text);
});

test("the APIs of baton serve answer in the page, as they come", { timeout: 120_000 }, async () => {
  const models = await call("request", "/v1/models");
  assert.equal(models.status, 200);
  assert.equal(JSON.parse(models.parts.join("")).data[0].id, "echo");
  const messages = [{ role: "user", content: "seven eight nine ten" }];
  const streamed = await call("request", "/v1/chat/completions", { messages, stream: true });
  assert.deepEqual([streamed.status, streamed.type], [200, "text/event-stream"]);
  assert.ok(streamed.parts.length > 4, `${streamed.parts.length} parts`);
  assert.match(streamed.parts.at(-1), /data: \[DONE\]\n\n$/);
  const stopped = await call("request", "/v1/chat/completions", { messages: [{ role: "user", content: "word ".repeat(200) }], stream: true }, 3);
  assert.ok(stopped.parts.length < 20 && !stopped.parts.join("").includes("[DONE]"), `${stopped.parts.length} parts after an abort`);
  const wrong = await call("request", "/v1/chat/completions", { messages: 1 });
  assert.equal(wrong.status, 400);
  assert.match(JSON.parse(wrong.parts.join("")).error.message, /messages is a list/);
});

test("OpenAI's library works over sessions of the page", { timeout: 120_000 }, async () => {
  const said = await call("openai");
  assert.ok(said.parts.filter(Boolean).length > 2, "streamed");
  assert.match(said.parts.join(""), /one two three/);
  assert.match(said.whole, /four/);
  assert.equal(said.seq, 1, "the second request goes on in the session of the first");
  assert.match(said.response, /five/);
  assert.equal(said.code, "model_not_found");
});

test("every turn is verified from the store, and the export holds for another verifier", { timeout: 120_000 }, async () => {
  assert.equal(await call("settled", 60), true);
  const report = await call("verify");
  assert.deepEqual([report.good, report.turns, report.problems], [true, 2, []], JSON.stringify(report));
  writeFileSync(join(folder, "export.json"), await call("exportText"));
  if (process.env.BATON_VERIFIER) {
    const [python, script] = process.env.BATON_VERIFIER.split(" ");
    const verifier = spawn(python, [script, join(folder, "export.json")], { stdio: ["ignore", "pipe", "inherit"] });
    let said = "";
    verifier.stdout.on("data", (text) => { said += text; });
    const code = await new Promise((done) => verifier.once("exit", done));
    assert.equal(code, 0, said);
  }
});

test("24 words restore the conversation in a new page, where it goes on", { timeout: 120_000 }, async () => {
  const words = await call("words");
  assert.equal(words.split(" ").length, 24);
  const history = await call("history");
  await page.close();
  await openPage(url);
  await call("open", options());
  assert.match((await call("refused", "restore", "not these")).message, /^words: /);
  await call("restore", words);
  const texts = (turns) => turns.map((turn) => turn.messages.map((message) => message.text));
  assert.deepEqual(texts(await call("history")), texts(history));
  const { answer } = await call("say", "And on.", { allowEcho: true });
  assert.equal(answer.seq, 2);
});

test("the page had no error", () => {
  // The browser itself reports a killed node's connection, and a blob that is not there yet.
  const ofTheBrowser = /^WebSocket connection|^Failed to load resource|Firefox can’t establish a connection|connection to ws:\S+ was interrupted/;
  assert.deepEqual(errors.filter((error) => !ofTheBrowser.test(error)), []);
});
