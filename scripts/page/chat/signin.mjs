// Signing in once per device, the key's end, the sentences about privacy, and the policy of the page as files.

import assert from "node:assert/strict";
import { test } from "node:test";

import { inContext } from "./harness.mjs";

/** The answer of `/api/defaults` with the changes. */
const withDefaults = (page, change) => page.route("**/api/defaults", async (route) => {
  const response = await route.fetch();
  await route.fulfill({ response, json: { ...await response.json(), ...change } });
});

export function signInTests(harness) {
  test("a key is asked once per device: a second tab, a bookmark and a link to a conversation open by themselves", async () => {
    await inContext(harness, async (context) => {
      const page = await context.newPage();
      await page.goto(harness.url);
      const dialog = page.getByRole("dialog", { name: "Open Baton" });
      assert.ok(await dialog.getByLabel("Keep me signed in on this device").isChecked());
      await dialog.getByLabel("Key", { exact: true }).fill(harness.key);
      await page.keyboard.press("Enter");
      await page.getByText("What shall we work on?").waitFor();
      for (const path of ["", `c/${"0".repeat(64)}`]) {
        const second = await context.newPage();
        await second.goto(`${harness.url}${path}`);
        await second.getByText("What shall we work on?").waitFor();
        assert.equal(await second.getByRole("dialog", { name: "Open Baton" }).count(), 0);
        await second.close();
      }
      // No cookie: it would go to every port of this host.
      assert.deepEqual(await context.cookies(), []);
    });
  });

  test("who does not stay signed in is asked again in the next tab", async () => {
    await inContext(harness, async (context) => {
      const page = await context.newPage();
      await page.goto(harness.url);
      await page.getByLabel("Keep me signed in on this device").uncheck();
      await page.getByLabel("Key", { exact: true }).fill(harness.key);
      await page.keyboard.press("Enter");
      await page.getByText("What shall we work on?").waitFor();
      await page.reload();
      await page.getByText("What shall we work on?").waitFor();
      const second = await context.newPage();
      await second.goto(harness.url);
      await second.getByRole("dialog", { name: "Open Baton" }).waitFor();
    });
  });

  test("signing out ends all tabs, and leaves nothing in the browser", async () => {
    await inContext(harness, async (context) => {
      const [page, second] = [await context.newPage(), await context.newPage()];
      for (const tab of [page, second]) {
        await tab.goto(`${harness.url}#key=${harness.key}`);
        await tab.getByText("What shall we work on?").waitFor();
      }
      await page.getByRole("button", { name: "Settings" }).click();
      await page.getByLabel(/Instructions/).fill("my secret instructions");
      await page.getByRole("button", { name: "Save", exact: true }).click();
      await page.getByRole("button", { name: "Settings" }).click();
      await page.getByRole("button", { name: "Sign out" }).click();
      for (const tab of [page, second]) {
        await tab.getByRole("dialog", { name: "Open Baton" }).waitFor();
        assert.equal(await tab.evaluate(() => localStorage.length), 0);
      }
      // A link that is opened in a tab of the page signs in too.
      await page.goto(`${harness.url}#key=${harness.key}`);
      await page.getByText("What shall we work on?").waitFor();
      assert.equal(page.url(), harness.url);
    });
  });

  test("a key that was removed ends the wait for an answer, and the message is in the box again", async () => {
    await inContext(harness, async (context) => {
      const page = await context.newPage();
      await page.goto(`${harness.url}#key=${harness.key}`);
      await page.getByText("What shall we work on?").waitFor();
      const refuse = (route) => route.fulfill({ status: 401, json: { error: { message: "this is no key", code: "invalid_api_key" } } });
      for (const path of ["**/v1/chat/completions", "**/api/sessions/**"]) await page.route(path, refuse);
      // The endpoint keeps no conversation of this test.
      await page.route("**/api/sessions", (route) => (route.request().method() === "POST" ? route.fulfill({ json: { id: "ab".repeat(32) } }) : route.continue()));
      await page.getByLabel("Message", { exact: true }).fill("are you there?");
      await page.keyboard.press("Enter");
      await page.getByText(/This key is wrong, has ended, or was removed/).waitFor();
      await page.getByText("Waiting for the answer…").waitFor({ state: "detached" });
      assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "are you there?");
    });
  });

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

  test("the page as files refuses scripts of other origins and in its text, whatever its server sends", async () => {
    await inContext(harness, async (context) => {
      const page = await context.newPage();
      await page.route(harness.url, async (route) => {
        const response = await route.fetch();
        const { "content-security-policy": sent, ...headers } = response.headers();
        assert.ok(sent.includes("script-src 'self'"), "the endpoint sends it as a header too");
        const body = (await response.text()).replace("</body>", "<script>document.title = 'injected'</script><p onclick=\"document.title = 'injected'\">click</p></body>");
        await route.fulfill({ status: 200, headers, body });
      });
      await page.goto(harness.url);
      await page.getByRole("dialog", { name: "Open Baton" }).waitFor();
      await page.evaluate(() => document.querySelector("[onclick]").click());
      assert.equal(await page.title(), "Baton");
    });
  });
}
