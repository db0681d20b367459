// The sentences about privacy.

import assert from "node:assert/strict";
import { test } from "node:test";

import { inContext } from "./harness.mjs";

/** The answer of `/api/defaults` with the changes. */
const withDefaults = (page, change) => page.route("**/api/defaults", async (route) => {
  const response = await route.fetch();
  await route.fulfill({ response, json: { ...await response.json(), ...change } });
});

export function signInTests(harness) {
  test("the page says what the endpoint's settings make true, and with memory off what holds then", async () => {
    await inContext(harness, async (context) => {
      const page = await context.newPage();
      const said = (summary, relayer) => ({ summary, details: ["It does not prove that the model ran."], relayer });
      const words = "The relayer r.example gets a few words of each message, to search memory with them.";
      const exchange = "Each exchange is sent to the relayer r.example, which can read it.";
      await withDefaults(page, {
        memory: "recall and remember", relayer: "r.example", owner: false,
        privacy: said(`The node that answers reads your message. ${words} ${exchange}`, [words, exchange]),
        privacy_without_memory: said("The node that answers reads your message.", []),
      });
      await page.goto(`${harness.url}#key=${harness.key}`);
      const trust = page.locator(".trust summary");
      await trust.getByText(exchange).waitFor();
      await page.getByRole("button", { name: "Settings" }).click();
      const hint = page.locator("#memoryHint");
      await hint.waitFor();
      assert.equal((await hint.textContent()).trim(), `${words} ${exchange}`);
      await harness.screenshot("settings-memory", page);
      await page.getByLabel("Use memory").uncheck();
      assert.equal((await hint.textContent()).trim(), "");
      await page.getByRole("button", { name: "Save", exact: true }).click();
      await page.waitForFunction(() => !document.querySelector(".trust").textContent.includes("relayer"));
      // Nothing is said before the endpoint has said it.
      await page.route("**/api/defaults", (route) => route.fulfill({ status: 500, json: {} }));
      await page.reload();
      await page.getByText("What shall we work on?").waitFor();
      assert.equal(await page.locator(".trust").count(), 0);
    });
  });
}
