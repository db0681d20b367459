// What a person does with turns: stop, resume, edit, regenerate, branch.

import assert from "node:assert/strict";
import { test } from "node:test";

export function turnTests(harness) {
  test("a stopped answer keeps its text, and goes on or is discarded", async () => {
    const { page } = harness;
    await harness.newConversation();
    await harness.message.fill("word ".repeat(300));
    await page.keyboard.press("Enter");
    await page.locator(".running .answer", { hasText: "word word" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByText("Stopped. This text is not part of the conversation yet.").waitFor();
    assert.match(await page.locator(".pending .answer").textContent(), /word word/);
    await harness.checkAxe("stopped");
    // The sealed journal has the text too.
    await page.reload();
    await page.getByText("Stopped. This text is not part of the conversation yet.").waitFor();
    assert.match(await page.locator(".pending .answer").textContent(), /word word/);
    await page.getByRole("button", { name: "Continue" }).click();
    await page.locator(".running .answer", { hasText: "word" }).waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByRole("button", { name: "Discard" }).click();
    // The only message of a conversation is discarded with it, and can be sent again.
    await page.getByText("What shall we work on?").waitFor();
    assert.match(await harness.message.inputValue(), /^word word/);
    await harness.message.fill("");
  });

  test("a stopped answer that another message leaves behind is shown as such", async () => {
    const { page } = harness;
    await harness.say("something short");
    await harness.message.fill("again ".repeat(300));
    await page.keyboard.press("Enter");
    await page.locator(".running .answer", { hasText: "again again" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Discard" }).waitFor();
    await harness.say("something else");
    await page.getByText("Stopped; not part of the conversation.").waitFor();
  });

  test("a message stays on the screen while older answers of the endpoint arrive", async () => {
    const { page } = harness;
    const late = async (route) => {
      await new Promise((done) => setTimeout(done, 500));
      await route.continue();
    };
    await page.route("**/api/sessions", late);
    const listed = page.waitForResponse((response) => response.url().endsWith("/api/sessions") && response.request().method() === "GET");
    await harness.newConversation();
    await harness.message.fill("slow ".repeat(150));
    await page.keyboard.press("Enter");
    await listed;
    await page.locator(".running", { hasText: "slow" }).waitFor();
    await page.unrouteAll({ behavior: "wait" });
    await harness.verified.first().waitFor();
    assert.equal(await harness.turns.count(), 1);
  });

  test("an answer is made again, and its versions stay", async () => {
    const { page } = harness;
    await harness.newConversation();
    await harness.say("first question");
    await harness.say("second question");
    await page.getByRole("button", { name: "Regenerate answer" }).click();
    await page.getByText("2 of 2").waitFor();
    assert.equal(await harness.turns.count(), 2);
    await page.getByRole("button", { name: "Earlier version" }).click();
    await page.getByText("1 of 2").waitFor();
    await page.getByRole("button", { name: "Replaced" }).waitFor();
    await harness.checkAxe("earlier version");
    // A redraw between the steps of a click swallows the click.
    const later = page.getByRole("button", { name: "Later version" });
    for (let tries = 0; tries < 5 && (await page.getByText("1 of 2").isVisible()); tries += 1) {
      await later.click({ timeout: 4000 }).catch(() => {});
    }
    await page.getByText("2 of 2").waitFor();
  });

  test("a message is edited, and the turns from it on are replaced", async () => {
    const { page } = harness;
    await harness.turns.nth(1).getByRole("button", { name: "Edit message" }).click();
    const box = page.getByLabel("Edited message");
    await harness.checkAxe("edit");
    await box.fill("another second question");
    await page.keyboard.press("Enter");
    await page.getByText("3 of 3").waitFor();
    assert.equal(await page.locator(".said").last().textContent(), "another second question");
    assert.equal(await harness.turns.count(), 2);
  });

  test("an earlier version brings back all turns that followed it, and goes on as a branch", async () => {
    const { page } = harness;
    const said = () => page.locator(".said").allTextContents();
    await harness.newConversation();
    for (const text of ["one way", "to the left", "and on"]) await harness.say(text);
    await harness.turns.nth(1).getByRole("button", { name: "Edit message" }).click();
    const box = page.getByLabel("Edited message");
    assert.equal(await box.getAttribute("dir"), "auto");
    await box.fill("to the right");
    await page.keyboard.press("Enter");
    await page.getByText("2 of 2").waitFor();
    await harness.verified.nth(1).waitFor();
    await harness.say("and stop");
    assert.deepEqual(await said(), ["one way", "to the right", "and stop"]);
    await page.getByRole("button", { name: "Earlier version" }).click();
    await page.getByText("This is an earlier version.").waitFor();
    assert.deepEqual(await said(), ["one way", "to the left", "and on"]);
    await harness.checkAxe("earlier version with its turns");
    await page.getByRole("button", { name: "Show the newest" }).click();
    assert.deepEqual(await said(), ["one way", "to the right", "and stop"]);
    // The chain leads to the words of a replaced turn.
    await page.getByRole("button", { name: "Chain" }).click();
    await harness.chain.getByRole("button", { name: /^3\. and on/ }).click();
    assert.deepEqual(await said(), ["one way", "to the left", "and on"]);
    await page.getByRole("button", { name: "Close the chain" }).click();
    const parent = page.url();
    await harness.message.fill("and further");
    await page.keyboard.press("Enter");
    await page.waitForURL((url) => url.href !== parent);
    await harness.verified.first().waitFor();
    assert.deepEqual(await said(), ["one way", "to the left", "and on", "and further"]);
    await page.goto(parent);
    await harness.verified.nth(2).waitFor();
    assert.deepEqual(await said(), ["one way", "to the right", "and stop"]);
    await harness.list.getByRole("link", { name: "first question" }).first().click();
    await harness.verified.nth(1).waitFor();
  });

  test("an answer says what its prompt left out, and which memories it used", async () => {
    const { page } = harness;
    const memories = [{ text: "You drink tea.", kind: "fact", created: "2026-11-01T08:00:00Z" }];
    await harness.withSession((shown) => Object.assign(shown.turns[0], { memories, omitted_turns: 2 }), async () => {
      const turn = harness.turns.first();
      await turn.getByText("2 earlier turns were left out: the conversation is longer than the model's context.").waitFor();
      await turn.getByText("Answered with 1 memory").click();
      await turn.getByText("You drink tea.").waitFor();
      await harness.checkAxe("memories");
    });
    await harness.withSession((shown) => { shown.turns[0].receipt.memory_items = 2; }, async () => {
      await harness.turns.first().getByText("Answered with 2 memories; their text is not on this device.").waitFor();
    });
  });

  test("the first message is edited too", { skip: process.env.BATON_PAGE_PROXY ? "the endpoint behind the page cannot" : false }, async () => {
    const { page } = harness;
    await harness.newConversation();
    await harness.say("a beginning");
    await harness.turns.first().getByRole("button", { name: "Edit message" }).click();
    await page.getByLabel("Edited message").fill("another beginning");
    await page.keyboard.press("Enter");
    await page.getByText("2 of 2").waitFor();
    assert.equal(await page.locator(".said").last().textContent(), "another beginning");
    await harness.list.getByRole("link", { name: "first question" }).click();
    await harness.verified.nth(1).waitFor();
  });

  test("a branch begins after a turn, and its parent stays as it is", async () => {
    const { page } = harness;
    const parent = page.url();
    await harness.turns.first().getByRole("button", { name: "More for turn 1" }).click();
    await page.getByRole("menuitem", { name: "Branch from here" }).click();
    await page.getByText("Your next message begins a branch after turn 1.").waitFor();
    assert.equal(await harness.turns.count(), 1);
    await harness.message.fill("a third way");
    await page.keyboard.press("Enter");
    await page.waitForURL((url) => url.href !== parent);
    await harness.verified.first().waitFor();
    assert.deepEqual(await page.locator(".said").allTextContents(), ["first question", "a third way"]);
    await page.getByRole("button", { name: "Chain" }).click();
    await harness.chain.getByText("Branched from").waitFor();
    await harness.chain.getByRole("link", { name: "first question" }).click();
    await page.waitForURL(parent);
    await harness.verified.nth(1).waitFor();
    await harness.chain.getByRole("link", { name: "first question" }).waitFor();
    assert.equal(await harness.turns.count(), 2);
    await page.getByRole("button", { name: "Close the chain" }).click();
  });

  test("a stopped beginning of a branch goes on", { skip: process.env.BATON_PAGE_PROXY ? "the endpoint behind the page cannot" : false }, async () => {
    const { page } = harness;
    const parent = page.url();
    await harness.turns.first().getByRole("button", { name: "More for turn 1" }).click();
    await page.getByRole("menuitem", { name: "Branch from here" }).click();
    await harness.message.fill("a long way ".repeat(60));
    await page.keyboard.press("Enter");
    await page.locator(".running .answer", { hasText: "a long" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Continue" }).click();
    await harness.verified.first().waitFor();
    assert.notEqual(page.url(), parent);
    assert.equal(await harness.turns.count(), 1);
    assert.match(await page.locator(".said").last().textContent(), /^a long way/);
    await page.goto(parent);
    await harness.verified.nth(1).waitFor();
  });

  test("a message that another tab has an answer for is not asked again", async () => {
    const { page } = harness;
    await harness.newConversation();
    await harness.say("once");
    let waits = true;
    const refused = [];
    const change = (shown) => {
      if (waits) Object.assign(shown, { turns: [], pending: [{ role: "user", content: "once" }], pending_text: "" });
    };
    page.on("response", (response) => { if (response.url().endsWith("/turns?pending=1")) refused.push(response.status()); });
    await harness.withSession(change, async () => {
      waits = false;
      await page.getByRole("button", { name: "Retry" }).click();
      await harness.verified.first().waitFor();
      assert.deepEqual([refused, await harness.turns.count()], [[409], 1]);
      harness.errors.length = 0;
    });
  });

  test("a draft survives a reload, and a pasted file is answered", async () => {
    const { page } = harness;
    await harness.newConversation();
    await harness.message.fill("half a thought");
    await page.reload();
    await page.getByText("What shall we work on?").waitFor();
    assert.equal(await harness.message.inputValue(), "half a thought");
    await harness.message.evaluate((box) => {
      const clipboardData = new DataTransfer();
      clipboardData.items.add(new File(["x"], "x.png", { type: "image/png" }));
      box.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
    });
    await page.getByText("Baton sends text only.").waitFor();
    await harness.message.fill("");
  });

  test("settings go with a request", async () => {
    const { page } = harness;
    await harness.newConversation();
    await page.getByRole("button", { name: "Settings", exact: true }).click();
    const dialog = page.getByRole("dialog", { name: "Settings" });
    assert.equal(await dialog.getByLabel("Temperature").getAttribute("placeholder"), "0.7");
    await dialog.getByLabel("Instructions for new conversations").fill("be brief");
    await dialog.getByLabel("Temperature").fill("0.2");
    await dialog.getByLabel("Longest answer").fill("64");
    await harness.checkAxe("settings");
    await dialog.getByRole("button", { name: "Save" }).click();
    const sent = page.waitForRequest("**/api/sessions/*/turns");
    await harness.say("a question with settings");
    const body = JSON.parse((await sent).postData());
    assert.deepEqual([body.temperature, body.max_tokens, body.messages[0]], [0.2, 64, { role: "system", content: "be brief" }]);
    await page.getByRole("button", { name: "Settings", exact: true }).click();
    await dialog.getByLabel("Temperature").fill("");
    await dialog.getByLabel("Longest answer").fill("");
    await dialog.getByRole("button", { name: "Save" }).click();
    await page.evaluate(() => localStorage.removeItem("settings"));
  });
}
