// Uses the chat page as a person would. The nodes run the test engine, which repeats the message.
//
//   node scripts/page/test_page.mjs --bin target/debug --chromium /usr/bin/chromium [--screenshots FOLDER]

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
const folder = mkdtempSync(join(tmpdir(), "baton-page-"));
const programs = [];
let browser, context, page, url, key;

/** Starts a program that prints one JSON line when it is ready. */
async function start(name, ...options) {
  const program = spawn(join(values.bin, name), options, { stdio: ["ignore", "pipe", "inherit"] });
  programs.push(program);
  const lines = createInterface({ input: program.stdout });
  const line = await Promise.race([
    new Promise((done) => lines.once("line", done)),
    new Promise((_, fail) => setTimeout(() => fail(new Error(`${name} was not ready`)), READY_MS).unref()),
  ]);
  return JSON.parse(line);
}

async function stop(program) {
  if (program.exitCode !== null) return;
  const ended = new Promise((done) => program.once("exit", done));
  program.kill("SIGTERM");
  await ended;
}

before(async () => {
  const network = await start("baton-testnet", "up", "--nodes", "3", "--engine", "echo", "--echo-delay-ms", "20", "--json");
  const home = ["--home", join(folder, "home"), "--config", network.config];
  const ready = await start("baton", "serve", "--listen", "127.0.0.1:0", "--allow-echo", "--json", ...home);
  url = new URL("/", ready.url).href;
  key = readFileSync(ready.key_file, "utf8").trim();
  browser = await chromium.launch({ executablePath: values.chromium, args: ["--no-sandbox"] });
  context = await browser.newContext({ viewport: { width: 1100, height: 720 }, acceptDownloads: true });
  page = await context.newPage();
  const elsewhere = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(url) && !/^(data|blob):/.test(request.url())) elsewhere.push(request.url());
  });
  page.on("pageerror", (error) => { throw error; });
  page.elsewhere = elsewhere;
  page.setDefaultTimeout(20_000);
});

after(async () => {
  await browser?.close();
  for (const program of programs.reverse()) await stop(program);
  rmSync(folder, { recursive: true, force: true });
});

const verified = () => page.locator("article.turn", { hasText: "✓ verified" });

async function say(text) {
  const turns = await verified().count();
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
  await verified().nth(turns).waitFor();
}

test("without the key nothing is shown, and a wrong one is refused", async () => {
  await page.goto(url);
  const dialog = page.getByRole("dialog", { name: "Key" });
  await dialog.waitFor();
  await dialog.getByLabel("Key", { exact: true }).fill("sk-wrong");
  await page.keyboard.press("Enter");
  await page.getByText("This key is not the one.").waitFor();
  assert.equal(await page.getByRole("listitem").count(), 0);
});

test("the link opens the page, and the key leaves the address", async () => {
  await page.goto(`${url}?fresh#key=${key}`);
  await page.getByText("3 nodes").waitFor();
  assert.equal(page.url(), url);
});

test("a conversation is kept, verified, and names the nodes that served it", async () => {
  await say("hello there");
  await say("and how are you?\nthis is a second line");
  assert.equal(await page.locator(".said").last().textContent(), "and how are you?\nthis is a second line");
  assert.match(await page.locator(".answer").last().textContent(), /and how are you/);
  const sessions = page.getByRole("navigation", { name: "Conversations" }).getByRole("listitem");
  assert.equal(await sessions.count(), 1);
  assert.match(await sessions.first().textContent(), /hello there2 turns/);
  await page.getByRole("button", { name: "receipt" }).last().click();
  const details = page.getByRole("dialog", { name: "Turn" });
  assert.match(await details.textContent(), /Engineecho/);
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Verify" }).click();
  await page.getByText(/✓ 2 turns, 2 receipts and 2 blob IDs verified/).waitFor();
  const [download] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("button", { name: "Export" }).click(),
  ]);
  const exported = JSON.parse(readFileSync(await download.path(), "utf8"));
  assert.ok(!("root" in exported) || exported.root === null, "an export is evidence, and not the key");
});

test("markup is text, and code is set apart", async () => {
  await page.keyboard.press("Alt+n");
  await page.getByRole("heading", { name: "New conversation" }).waitFor();
  await say("<img src=x onerror=alert(1)>");
  // The test engine answers on one line; a model's answer is put in its place.
  const answer = "<b>before</b>\n```js\nlet x = 1;\n```\nafter";
  await page.route("**/api/sessions/*", async (route) => {
    const response = await route.fetch();
    const shown = await response.json();
    shown.turns[0].messages[1].content = answer;
    await route.fulfill({ response, json: shown });
  });
  await page.getByRole("navigation").getByText("<img src=x").click();
  await page.locator("#log pre code", { hasText: "let x = 1;" }).waitFor();
  assert.deepEqual(await page.locator(".answer p").allTextContents(), ["<b>before</b>", "after"]);
  assert.equal(await page.locator("#log img, #log b").count(), 0);
  await page.unroute("**/api/sessions/*");
});

test("a message stays on the screen while older answers of the endpoint arrive", async () => {
  const late = async (route) => {
    await new Promise((done) => setTimeout(done, 500));
    await route.continue();
  };
  await page.route("**/api/sessions", late);
  const listed = page.waitForResponse((response) => response.url().endsWith("/api/sessions") && response.request().method() === "GET");
  await page.keyboard.press("Alt+n");
  await page.getByLabel("Message", { exact: true }).fill("slow ".repeat(200));
  await page.keyboard.press("Enter");
  await listed;
  await page.locator(".working", { hasText: "slow" }).waitFor();
  await page.unroute("**/api/sessions", late);
  await verified().first().waitFor();
  assert.equal(await page.locator("article.turn").count(), 1);
});

test("an answer is stopped by Escape, kept, and finished when it is asked again", async () => {
  await page.getByRole("button", { name: "New", exact: false }).first().click();
  const long = "word ".repeat(400);
  await page.getByLabel("Message", { exact: true }).fill(long);
  await page.keyboard.press("Enter");
  await page.locator(".working", { hasText: "word" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByText("not answered", { exact: true }).waitFor();
  await page.getByRole("button", { name: "ask again" }).click();
  await page.locator(".working", { hasText: "word" }).waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByText("not answered", { exact: true }).waitFor();
  await page.getByRole("button", { name: "give it up" }).click();
  await page.getByText("not answered", { exact: true }).waitFor({ state: "detached" });
  await say("something short instead");
});

test("the keyboard alone is enough, and what changes is announced", async () => {
  await page.reload();
  await page.getByText("3 nodes").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), "message");
  await page.keyboard.press("Shift+Tab");
  const seen = new Set();
  for (let step = 0; step < 30; step++) {
    const name = await page.evaluate(() => {
      const at = document.activeElement;
      return at.getAttribute("aria-label") || at.textContent.trim() || at.id;
    });
    seen.add(name);
    if (name === "New") break;
    await page.keyboard.press("Shift+Tab");
  }
  assert.ok(seen.has("New") && seen.has("Conversation"), [...seen].join(", "));
  for (const control of await page.locator("button:visible, select:visible, textarea:visible").all()) {
    const name = await control.evaluate((node) => node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.[0]?.textContent);
    assert.ok(name, await control.evaluate((node) => node.outerHTML));
  }
  assert.equal(await page.getByRole("log").getAttribute("aria-label"), "Conversation");
});

test("a session is opened again and deleted", async () => {
  await page.getByRole("navigation").getByText("hello there").click();
  await page.getByRole("heading", { name: "hello there" }).waitFor();
  assert.equal(await verified().count(), 2);
  if (values.screenshots) {
    await page.screenshot({ path: join(values.screenshots, "chat-page.png") });
    await page.emulateMedia({ colorScheme: "dark" });
    await page.setViewportSize({ width: 420, height: 760 });
    await page.screenshot({ path: join(values.screenshots, "chat-page-narrow.png") });
    await page.setViewportSize({ width: 1100, height: 720 });
  }
  const sessions = page.getByRole("navigation", { name: "Conversations" }).getByRole("listitem");
  await sessions.first().waitFor();
  const before = await sessions.count();
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByText("Deleted.").waitFor();
  assert.equal(await sessions.count(), before - 1);
});

test("nothing was asked of anybody else", () => {
  assert.deepEqual(page.elsewhere, []);
});
