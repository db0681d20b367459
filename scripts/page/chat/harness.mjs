// A network of test nodes, which repeat the message, an endpoint over it, and a browser that opens its page.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { chromium } from "playwright-core";

const READY_MS = 60_000;
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Does something in another browser profile, as on another device. */
export async function inContext(harness, work) {
  const context = await harness.browser.newContext({ viewport: { width: 1100, height: 720 } });
  context.setDefaultTimeout(Number(process.env.BATON_PAGE_TIMEOUT_MS ?? 20_000));
  try {
    await work(context);
  } finally {
    await context.close();
  }
}

/** What the tests of the page share. */
export class Harness {
  /** @param {{ bin?: string, chromium: string, url?: string, key?: string, screenshots?: string }} options */
  constructor(options) {
    this.options = options;
    this.programs = [];
    this.folder = mkdtempSync(join(tmpdir(), "baton-page-"));
    /** Requests to other hosts than the endpoint. */
    this.elsewhere = [];
    /** Errors in the console. */
    this.errors = [];
  }

  async open() {
    if (this.options.url) Object.assign(this, { url: this.options.url, key: this.options.key });
    else await this.serve();
    this.browser = await chromium.launch({ executablePath: this.options.chromium, args: ["--no-sandbox"] });
    this.context = await this.browser.newContext({
      viewport: { width: 1100, height: 720 }, acceptDownloads: true, permissions: ["clipboard-read", "clipboard-write"],
    });
    this.page = await this.newPage();
  }

  async newPage() {
    const page = await this.context.newPage();
    page.on("request", (request) => {
      if (!request.url().startsWith(this.url) && !/^(data|blob):/.test(request.url())) this.elsewhere.push(request.url());
    });
    page.on("console", (message) => { if (message.type() === "error") this.errors.push(message.text()); });
    page.on("pageerror", (error) => { this.errors.push(error.stack); });
    page.setDefaultTimeout(Number(process.env.BATON_PAGE_TIMEOUT_MS ?? 20_000));
    return page;
  }

  async serve() {
    const network = await this.start("baton-testnet", "up", "--nodes", "3", "--engine", "echo", "--echo-delay-ms", "20", "--json");
    this.config = network.config;
    const ready = await this.endpoint("home", "--config", network.config);
    Object.assign(this, ready);
  }

  /** Starts an endpoint with a home of its own. */
  async endpoint(home, ...options) {
    const ready = await this.start("baton", "serve", "--listen", "127.0.0.1:0", "--allow-echo", "--json", "--home", join(this.folder, home), ...options);
    return { url: new URL("/", ready.url).href, key: readFileSync(ready.key_file, "utf8").trim() };
  }

  /** Starts a program that prints one JSON line when it is ready. */
  async start(name, ...options) {
    const program = spawn(join(this.options.bin, name), options, { stdio: ["ignore", "pipe", "inherit"] });
    this.programs.push(program);
    const lines = createInterface({ input: program.stdout });
    const line = await Promise.race([
      new Promise((done) => lines.once("line", done)),
      new Promise((_, fail) => setTimeout(() => fail(new Error(`${name} was not ready`)), READY_MS).unref()),
    ]);
    return JSON.parse(line);
  }

  async close() {
    await this.browser?.close();
    for (const program of this.programs.reverse()) {
      if (program.exitCode !== null || program.signalCode !== null) continue;
      const ended = new Promise((done) => program.once("exit", done));
      program.kill("SIGTERM");
      await ended;
    }
    rmSync(this.folder, { recursive: true, force: true });
  }

  get message() { return this.page.getByLabel("Message", { exact: true }); }
  get verified() { return this.page.getByRole("log").getByRole("button", { name: "Verified" }); }
  get turns() { return this.page.locator("article.turn"); }
  get list() { return this.page.getByRole("navigation", { name: "Conversations" }); }
  get chain() { return this.page.getByRole("complementary", { name: "Chain" }); }

  /** Sends a message and waits for its answer. */
  async say(text) {
    const before = await this.verified.count();
    await this.message.fill(text);
    await this.page.keyboard.press("Enter");
    await this.verified.nth(before).waitFor();
  }

  async newConversation() {
    await this.page.keyboard.press("Alt+n");
    await this.page.getByText("What shall we work on?").waitFor();
  }

  /** Chooses an entry of the menu of the conversation that is shown. */
  async choose(entry) {
    await this.page.getByRole("button", { name: "More for this conversation" }).click();
    await this.page.getByRole("menuitem", { name: entry }).click();
  }

  /**
   * Changes the endpoint's answers about sessions while the work runs: the test engine cannot write Markdown, and
   * no test waits for a node to fail within an answer.
   */
  async withSession(change, work) {
    const route = async (route) => {
      const response = await route.fetch();
      const shown = await response.json();
      if (shown.turns) change(shown);
      await route.fulfill({ response, json: shown });
    };
    await this.page.route(/\/api\/sessions\/[\da-f]{64}(\?.*)?$/, route);
    try {
      await this.page.reload();
      await this.turns.first().waitFor();
      await work();
    } finally {
      await this.page.unroute(/\/api\/sessions\/[\da-f]{64}(\?.*)?$/, route);
    }
  }

  /** No violation of the rules for accessible pages, in light and in dark. */
  async checkAxe(what, page = this.page) {
    await page.evaluate(AXE);
    for (const colorScheme of ["dark", "light"]) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      const violations = await page.evaluate(async () => (await globalThis.axe.run()).violations
        .map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.target} ${node.failureSummary ?? ""}`).join("; ")}`));
      assert.deepEqual(violations, [], `${what}, ${colorScheme}`);
    }
  }

  async screenshot(name, page = this.page) {
    if (this.options.screenshots) await page.screenshot({ path: join(this.options.screenshots, `${name}.png`) });
  }
}
