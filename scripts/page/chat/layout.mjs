// The keyboard, phones and wide screens.

import assert from "node:assert/strict";
import { test } from "node:test";

import { RICH } from "./answers.mjs";

const PHONE = { width: 390, height: 780 };
const TARGET_PX = 44;

export function layoutTests(harness) {
  test("the keyboard alone is enough, and what changes is announced", async () => {
    const { page } = harness;
    await page.reload();
    await page.getByText("3 nodes").waitFor();
    await harness.verified.first().waitFor();
    await page.waitForFunction(() => document.activeElement.id === "message");
    const seen = new Set();
    for (let step = 0; step < 60; step++) {
      await page.keyboard.press("Shift+Tab");
      const name = await page.evaluate(() => {
        const at = document.activeElement;
        return at.getAttribute("aria-label") || at.textContent.trim() || at.id;
      });
      seen.add(name);
      if (name === "New conversation") break;
    }
    for (const name of ["New conversation", "Conversation", "search", "Settings"]) assert.ok(seen.has(name), [...seen].join(", "));
    await page.getByRole("button", { name: "More for this conversation" }).focus();
    await page.keyboard.press("Enter");
    await page.keyboard.press("ArrowDown");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Export as Markdown");
    await harness.checkAxe("menu");
    await page.keyboard.press("Escape");
    assert.equal(await page.evaluate(() => document.activeElement.id), "more");
    assert.equal(await page.getByRole("log").getAttribute("aria-label"), "Conversation");
  });

  test("a notice lies over the page and does not move the log", async () => {
    const { page } = harness;
    const top = () => page.locator(".turn").first().evaluate((turn) => turn.getBoundingClientRect().top);
    const before = await top();
    await page.getByRole("button", { name: "Chain" }).click();
    await harness.chain.getByRole("button", { name: "Verify now" }).click();
    await page.locator("#notice:not([hidden])").waitFor();
    assert.equal(await top(), before);
    await page.keyboard.press("Escape");
  });

  test("the log stays at its end, unless a person scrolled up", async () => {
    const { page } = harness;
    const toEnd = () => page.locator("#log").evaluate((log) => log.scrollHeight - log.scrollTop - log.clientHeight);
    await page.setViewportSize({ width: 1200, height: 500 });
    await harness.newConversation();
    for (const word of ["one ", "two "]) await harness.say(word.repeat(80));
    assert.ok(await toEnd() < 2);
    await page.getByRole("button", { name: "Chain" }).click();
    await page.waitForFunction(() => { const log = document.getElementById("log"); return log.scrollHeight - log.scrollTop - log.clientHeight < 2; });
    await page.getByRole("button", { name: "Close the chain" }).click();
    await page.locator("#log").evaluate((log) => { log.scrollTop = 0; });
    await harness.message.fill("three ".repeat(80));
    await page.keyboard.press("Enter");
    await page.locator(".running .answer", { hasText: "three three" }).waitFor();
    await page.locator("#log").evaluate((log) => { log.scrollTop = 0; });
    await harness.verified.nth(2).waitFor();
    assert.ok(await toEnd() > 100);
    await page.setViewportSize({ width: 1100, height: 720 });
  });

  test("on a phone all targets are large, nothing scrolls sideways, and the list closes over a scrim", async () => {
    const { page } = harness;
    await page.setViewportSize(PHONE);
    await harness.withSession((shown) => { shown.turns[0].messages.at(-1).content = RICH; }, async () => {
      const small = () => page.evaluate((least) => [...document.querySelectorAll("button, select, input, textarea, summary, a:not(.prose a)")]
        .filter((target) => target.checkVisibility({ visibilityProperty: true }) && target.id !== "scrim" && target.type !== "checkbox")
        .map((target) => [target.outerHTML.slice(0, 80), target.getBoundingClientRect()])
        .filter(([, box]) => box.width > 1 && (box.height < least - 0.5 || box.width < least - 0.5)).map(([html, box]) => `${html} ${box.width}x${box.height}`), TARGET_PX);
      assert.deepEqual(await small(), []);
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), PHONE.width);
      await harness.checkAxe("phone");
      await page.getByRole("button", { name: "Show or hide conversations" }).click();
      await harness.list.getByRole("link").first().waitFor();
      assert.deepEqual(await small(), []);
      await harness.checkAxe("phone with the list");
      await page.mouse.click(PHONE.width - 10, PHONE.height / 2);
      await harness.list.waitFor({ state: "hidden" });
      await page.getByRole("button", { name: "Chain" }).click();
      assert.deepEqual(await small(), []);
      await page.getByRole("button", { name: "Close the chain" }).click();
    });
    await page.setViewportSize({ width: 1920, height: 1000 });
    const column = await page.locator(".answer").first().evaluate((answer) => answer.getBoundingClientRect().width);
    assert.ok(column <= 760, `lines stay readable: ${column}`);
    await page.setViewportSize({ width: 1100, height: 720 });
  });
}
