// Uses the chat page with the client in it, as files on a server that knows nothing of Baton, over three nodes with the real
// model: a conversation whose node is killed in mid-answer, its check, a reload, and its 24 words in another browser.
//
//   node scripts/browser/test_page.mjs --bin target/debug --page FOLDER --chromium /usr/bin/chromium [--screenshots FOLDER]

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { after, before, test } from "node:test";
import { parseArgs } from "node:util";

import { Harness } from "../page/chat/harness.mjs";

const { values } = parseArgs({
  options: { bin: { type: "string" }, page: { type: "string" }, chromium: { type: "string" }, screenshots: { type: "string" } },
});
const TYPES = { ".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".json": "application/json", ".wasm": "application/wasm" };
/** What a server of the page should send: docs/GATEWAY.md has it too. */
const POLICY = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; "
  + "connect-src 'self' http://127.0.0.1:* ws://127.0.0.1:*; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
// The real model computes on the processors of this machine, beside the browser.
process.env.BATON_PAGE_TIMEOUT_MS ??= "60000";
const STORY = "Tell me a long story about a lighthouse keeper and a storm.";

/** A store, three nodes that listen on WebRTC, and a server of files. */
class DirectHarness extends Harness {
  async serve() {
    this.store = await this.start("baton-testnet", "store", "--listen", "127.0.0.1:0", "--data-dir", join(this.folder, "store"), "--json");
    const first = await this.node(0);
    const tcp = first.listen.find((address) => /\/tcp\/\d+\/p2p/.test(address));
    this.nodes = [first, await this.node(1, "--bootstrap", tcp), await this.node(2, "--bootstrap", tcp)];
    const nodes = this.nodes.map(({ listen }) => listen.find((address) => address.includes("/webrtc-direct/")));
    this.settings = { nodes, aggregator: this.store.url, shards: this.store.shards ?? 1000 };
    this.server = createServer((request, response) => this.file(new URL(request.url, "http://localhost").pathname, response));
    await new Promise((done) => this.server.listen(0, "127.0.0.1", done));
    this.url = `http://127.0.0.1:${this.server.address().port}/`;
  }

  async node(number, ...options) {
    const listen = ["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/webrtc-direct"].flatMap((address) => ["--listen", address]);
    const ready = await this.start(
      "baton-node", "run", "--json", "--data-dir", join(this.folder, `node${number}`), "--threads", "1", "--kv-mb", "64", "--mdns", "false",
      "--own-networks", "127.0.0.0/8", "--admin", "127.0.0.1:0", "--log", "warn", "--publisher", this.store.url, "--aggregator", this.store.url, ...listen, ...options,
    );
    return { ...ready, program: this.programs.at(-1) };
  }

  /** Serves a file; for any other path the page itself, as servers of one-page applications do. */
  file(path, response) {
    const send = (name, bytes) => response.writeHead(200, {
      "content-type": TYPES[extname(name)] ?? "application/octet-stream", "content-security-policy": POLICY,
    }).end(bytes);
    if (path === "/baton.json") return send(path, JSON.stringify(this.settings));
    try {
      return send(path, readFileSync(join(values.page, path)));
    } catch {
      return send("index.html", readFileSync(join(values.page, "index.html")));
    }
  }

  async newPage() {
    const page = await super.newPage();
    // The page asks before it is left while something is not stored.
    page.on("dialog", (dialog) => dialog.accept());
    return page;
  }

  /** Sets the longest answer, in tokens. */
  async longestAnswer(tokens) {
    await this.page.getByRole("button", { name: "Settings", exact: true }).click();
    const dialog = this.page.getByRole("dialog", { name: "Settings" });
    assert.equal(await dialog.getByLabel("Use memory").isVisible(), false, "there is no relayer");
    await dialog.getByLabel("Longest answer").fill(String(tokens));
    await dialog.getByRole("button", { name: "Save" }).click();
  }

  /** Waits until the store has every turn that is shown. */
  async stored() {
    await this.page.locator(".kept.waits").first().waitFor({ state: "detached" });
  }

  /** The node that serves a turn now. */
  async serving() {
    for (;;) {
      for (const node of this.nodes) {
        const metrics = await (await fetch(`http://${node.admin}/metrics`)).text();
        if (/^baton_turns_running 1/m.test(metrics)) return node;
      }
    }
  }

  async close() {
    await super.close();
    this.server?.close();
  }
}

const harness = new DirectHarness(values);
before(() => harness.open());
after(() => harness.close());

test("the page opens without a key, over nodes and a store alone", { timeout: 120_000 }, async () => {
  const { page } = harness;
  await page.setViewportSize({ width: 1280, height: 760 });
  await page.goto(harness.url);
  await page.getByText("3 nodes").waitFor();
  assert.equal(await page.getByRole("dialog").count(), 0);
  await harness.checkAxe("empty");
});

test("a sentence goes on when its node is killed", { timeout: 180_000 }, async () => {
  const { page } = harness;
  await harness.longestAnswer(200);
  await harness.message.fill(STORY);
  await page.keyboard.press("Enter");
  await page.locator(".running .answer", { hasText: /\w+ \w+ \w+/ }).waitFor();
  const killed = await harness.serving();
  const begun = (await page.locator(".running .answer").textContent()).trim();
  killed.program.kill("SIGKILL");
  await harness.verified.first().waitFor({ timeout: 120_000 });
  const answer = (await page.locator(".answer").textContent()).trim();
  assert.ok(answer.startsWith(begun.slice(0, 40)), `${begun} -> ${answer}`);
  assert.ok(answer.length > begun.length, "another node went on");
  await page.getByRole("button", { name: "Chain" }).click();
  await harness.chain.getByText("began an answer").waitFor();
  assert.match(await harness.chain.locator(".by").textContent(), new RegExp(`^${killed.node.slice(0, 8)} → `));
  await harness.stored();
});

test("every turn is checked against the store, in the page", { timeout: 60_000 }, async () => {
  const { page } = harness;
  await harness.chain.getByRole("button", { name: "Verify now" }).click();
  await page.getByText("✓ All signatures, hashes and receipts match.").waitFor();
  await harness.chain.getByText("✓ 1 turn, 1 receipt").waitFor();
  await harness.screenshot("browser-client");
  await page.getByRole("button", { name: "Close the chain" }).click();
});

test("a stopped answer keeps its text and can be discarded", { timeout: 120_000 }, async () => {
  const { page } = harness;
  await harness.message.fill("Tell me another story, as long as you can.");
  await page.keyboard.press("Enter");
  await page.locator(".running .answer", { hasText: /\w+ \w+/ }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByText("Stopped. This text is not part of the conversation yet.").waitFor();
  assert.match(await page.locator(".pending .answer").textContent(), /\w+ \w+/);
  await page.getByRole("button", { name: "Discard" }).click();
  await page.locator(".pending").waitFor({ state: "detached" });
  await harness.message.fill("");
});

test("an answer is made again, and a setting goes with the request", { timeout: 120_000 }, async () => {
  const { page } = harness;
  await harness.longestAnswer(12);
  await page.getByRole("button", { name: "Regenerate answer" }).click();
  await page.getByText("2 of 2").waitFor();
  await page.getByText(/limit of 12 tokens/).first().waitFor();
  await harness.stored();
});

test("a reload reads the conversation back from the store, and it goes on", { timeout: 120_000 }, async () => {
  const { page } = harness;
  const before = await page.locator(".answer").last().textContent();
  await page.reload();
  await harness.verified.first().waitFor();
  assert.equal(await page.locator(".answer").last().textContent(), before);
  assert.equal(await harness.list.getByRole("listitem").count(), 1);
  await harness.say("And then?");
  assert.equal(await harness.turns.count(), 2);
  await harness.stored();
});

test("its 24 words bring it into another browser, and a deletion holds there too", { timeout: 120_000 }, async () => {
  const { page, context } = harness;
  await harness.choose("Recovery words");
  const dialog = page.getByRole("dialog", { name: "Recovery words" });
  const words = await dialog.getByRole("listitem").allTextContents();
  assert.equal(words.length, 24);
  await harness.checkAxe("words");
  await dialog.getByRole("button", { name: "Close" }).click();
  const stored = await page.evaluate(async () => {
    const open = (request) => new Promise((done) => { request.onsuccess = () => done(request.result); });
    const database = await open(indexedDB.open("baton"));
    const all = await open(database.transaction("sessions").objectStore("sessions").getAll());
    const key = await open(database.transaction("keys").objectStore("keys").get("wrapping"));
    return { all: all.map(({ sealed }) => new TextDecoder().decode(sealed)), extractable: key.extractable };
  });
  assert.equal(stored.extractable, false);
  assert.ok(stored.all.length === 1 && !stored.all[0].includes(words[0]), "the words are sealed");

  const other = await harness.browser.newContext({ viewport: { width: 1100, height: 720 } });
  harness.context = other;
  harness.page = await harness.newPage();
  await harness.page.goto(harness.url);
  await harness.page.getByText(/\d nodes/).waitFor();
  assert.equal(await harness.list.getByRole("listitem").count(), 0);
  await harness.page.getByRole("button", { name: "Settings", exact: true }).click();
  await harness.page.getByRole("button", { name: "Restore a conversation" }).click();
  await harness.page.getByLabel("Its 24 recovery words").fill("not these words");
  await harness.page.getByRole("button", { name: "Restore", exact: true }).click();
  await harness.page.getByText(/words: /).waitFor();
  await harness.page.getByRole("button", { name: "Settings", exact: true }).click();
  await harness.page.getByRole("button", { name: "Restore a conversation" }).click();
  await harness.page.getByLabel("Its 24 recovery words").fill(words.join(" "));
  await harness.page.getByRole("button", { name: "Restore", exact: true }).click();
  await harness.verified.nth(1).waitFor();
  await harness.choose("Delete");
  await harness.page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await harness.page.getByText("Deleted.").waitFor();
  await other.close();

  Object.assign(harness, { context, page });
  await page.goto(harness.url);
  await page.getByText(/\d nodes/).waitFor();
  await page.getByText("Your conversations will be here.").waitFor();
});

test("nothing was asked of anybody else, and the page had no error", () => {
  const known = [harness.store.url, ...harness.settings.nodes];
  assert.deepEqual(harness.elsewhere.filter((url) => !known.some((one) => url.startsWith(one))), []);
  // The browser itself reports a killed node's connection, and a blob that is not there yet.
  assert.deepEqual(harness.errors.filter((error) => !/^WebSocket connection|^Failed to load resource/.test(error)), []);
});
