// The lives of tabs: an answer goes on without its tab, and all tabs of a conversation show the same.

import assert from "node:assert/strict";
import { test } from "node:test";

const NOBODY = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";

export function tabTests(harness) {
  const text = (tab) => tab.locator(".running .answer", { hasText: "word word" });
  const answered = (tab) => tab.getByRole("log").getByRole("button", { name: "Verified" });
  const begin = async (words) => {
    await harness.newConversation();
    await harness.message.fill("word ".repeat(words));
    await harness.page.keyboard.press("Enter");
    await text(harness.page).waitFor();
  };
  /** A tab of another endpoint; what it asks and logs is not that of the others. */
  const tabOf = async ({ url, key }) => {
    const tab = await harness.context.newPage();
    await tab.goto(`${url}?fresh#key=${key}`);
    await tab.getByText("What shall we work on?").waitFor();
    return tab;
  };

  test("an answer goes on without its tab, and is whole when the conversation is opened", async () => {
    const { page } = harness;
    await begin(300);
    const address = page.url();
    await page.goto("about:blank");
    await page.goto(address);
    // It runs, and is not offered again.
    await text(page).waitFor();
    assert.equal(await page.getByRole("button", { name: "Retry" }).count(), 0);
    await harness.verified.first().waitFor();
    assert.equal((await page.locator(".answer").textContent()).trim(), `echo: ${"word ".repeat(300).trim()}`);
    assert.equal(await harness.turns.count(), 1);
  });

  test("a second tab follows the first, and each of them can stop the answer", async () => {
    const { page } = harness;
    await harness.newConversation();
    await harness.say("a beginning of two tabs");
    const other = await harness.newPage();
    await other.goto(page.url());
    await answered(other).first().waitFor();
    await harness.message.fill("word ".repeat(400));
    await page.bringToFront();
    await page.keyboard.press("Enter");
    await text(page).waitFor();
    await other.bringToFront();
    await text(other).waitFor();
    assert.equal(await other.locator(".running .said").textContent(), "word ".repeat(400));
    await other.getByRole("button", { name: "Stop" }).click();
    for (const tab of [other, page]) await tab.getByText("Stopped. This text is not part of the conversation yet.").waitFor();
    await other.getByRole("button", { name: "Continue" }).click();
    await page.bringToFront();
    for (const tab of [other, page]) await answered(tab).nth(1).waitFor();
    assert.equal(await harness.turns.count(), 2);
    await other.close();
  });

  test("a takeover is said while it happens", async () => {
    const { page } = harness;
    await harness.newConversation();
    await page.route("**/api/sessions/*/turns", (route) => {
      const event = { messages: [{ role: "user", content: "who answers?" }], waited_ms: 5, text: "word word ",
        notes: ["node aaaaaaaa stopped answering", "node bbbbbbbb continues the answer"] };
      return route.fulfill({ contentType: "text/event-stream", body: `data: ${JSON.stringify(event)}\n\n` });
    });
    let ends = false;
    await page.route("**/api/sessions/*/answer", async (route) => {
      while (!ends) await new Promise((done) => setTimeout(done, 50));
      await route.continue();
    });
    await harness.message.fill("who answers?");
    await page.keyboard.press("Enter");
    await page.getByText("Node bbbbbbbb continues the answer.").waitFor();
    await harness.checkAxe("takeover");
    ends = true;
    // The endpoint has no such message: it is in the box again.
    await page.waitForFunction(() => document.getElementById("message").value === "who answers?");
    await page.unrouteAll({ behavior: "wait" });
    await harness.message.fill("");
    harness.errors.length = 0;
  });

  test("a message that no node took is in the box, and nothing is said to be kept", { skip: process.env.BATON_PAGE_PROXY ? "it needs an endpoint of its own" : false }, async () => {
    const tab = await tabOf(await harness.endpoint("alone", "--node", NOBODY));
    const box = tab.getByLabel("Message", { exact: true });
    await box.fill("is anybody there?");
    await tab.keyboard.press("Enter");
    await tab.locator("#notice", { hasText: "No node was found." }).waitFor();
    assert.equal(await box.inputValue(), "is anybody there?");
    assert.equal(await tab.getByText(/saved|kept/).count(), 0);
    // Leave, and come back.
    await tab.goto("about:blank");
    await tab.goBack();
    await tab.getByText("Your conversations will be here.").waitFor();
    assert.equal(await box.inputValue(), "is anybody there?");
    // Load the page again while a node is looked for.
    await tab.keyboard.press("Enter");
    await tab.locator(".running .said", { hasText: "is anybody there?" }).waitFor();
    await tab.waitForURL(/\/c\//);
    await tab.reload();
    assert.equal(await box.inputValue(), "");
    await tab.locator("#notice", { hasText: "No node was found." }).waitFor();
    assert.equal(await box.inputValue(), "is anybody there?");
    await tab.getByText("Your conversations will be here.").waitFor();
    await tab.close();
  });

  test("a stopped endpoint is not taken for missing nodes", { skip: process.env.BATON_PAGE_PROXY ? "it needs an endpoint of its own" : false }, async () => {
    const tab = await tabOf(await harness.endpoint("stopped", "--config", harness.config));
    await tab.getByText("3 nodes").waitFor();
    const program = harness.programs.at(-1);
    const ended = new Promise((done) => program.once("exit", done));
    program.kill("SIGTERM");
    await ended;
    await tab.getByText("baton serve does not answer. Is it running?").waitFor();
    assert.equal(await tab.getByText("No node found").count(), 0);
    await tab.close();
  });
}
