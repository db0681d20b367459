// The chain as a picture.

import assert from "node:assert/strict";
import { test } from "node:test";

export function chainTests(harness) {
  test("the chain has one mark a turn, with nodes, takeovers, segments and storage; a click opens the receipt", async () => {
    const { page } = harness;
    await harness.list.getByRole("link", { name: "first question", exact: true }).click();
    await harness.verified.nth(1).waitFor();
    const other = "ab".repeat(32);
    const change = (shown) => {
      shown.turns.forEach((turn) => Object.assign(turn, { stored: true, kept_until_ms: Date.UTC(2031, 0, 17, 12) }));
      const last = shown.turns.at(-1);
      Object.assign(last, { stored: false, kept_until_ms: null, segment: 1, took_over: [{ node: other, tokens: 3 }] });
    };
    await harness.withSession(change, async () => {
      await page.getByText("abababab stopped after 3 tokens;").waitFor();
      const all = await page.evaluate(() => fetch(`/api/sessions/${location.pathname.slice(3)}?replaced=1`, { headers: { authorization: `Bearer ${localStorage.getItem("key")}` } }).then((got) => got.json()));
      await page.getByRole("button", { name: "Chain" }).click();
      const marks = harness.chain.locator("button.mark");
      assert.equal(await marks.count(), all.turns.length);
      assert.equal(await harness.chain.locator("button.mark.replaced").count(), all.replaced);
      const colours = await page.evaluate(() => [...document.querySelectorAll("#chain button.mark circle:is(.full, .hollow)")].map((mark) => mark.getAttribute("class")));
      assert.ok(colours.every((name) => /node-\d/.test(name)));
      assert.match(await harness.chain.textContent(), /Segment 1 closed, stored until [^S]*2031.*Segment 2 open, 1 turn not stored yet/);
      assert.match(await marks.last().textContent(), /^\d+\. .*abababab → [\da-f]{8}, verified.*not stored yet/);
      assert.equal(await marks.last().locator("circle.full").count(), 2);
      await harness.checkAxe("chain");
      await marks.first().click();
      await page.getByRole("dialog", { name: "Turn 1" }).waitFor();
      await page.keyboard.press("Escape");
    });
  });

  test("the picture shows what was verified", async () => {
    const { page } = harness;
    if (!await harness.chain.isVisible()) await page.getByRole("button", { name: "Chain" }).click();
    await harness.chain.getByRole("button", { name: "Verify now" }).click();
    await harness.chain.getByText(/✓ \d+ turns?, \d+ receipts? and \d+ blob IDs? match/).waitFor();
    await page.keyboard.press("Escape");
    await harness.chain.waitFor({ state: "hidden" });
  });
}
