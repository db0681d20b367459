// The key, the nodes, and what the page asks of others.

import assert from "node:assert/strict";
import { test } from "node:test";

export function accessTests(harness) {
  test("without the key nothing is shown, no error is in the console, and a wrong key is refused", async () => {
    const { page } = harness;
    await page.goto(harness.url);
    const dialog = page.getByRole("dialog", { name: "Open Baton" });
    await dialog.waitFor();
    await harness.checkAxe("key");
    await dialog.getByLabel("Key", { exact: true }).fill("sk-wrong");
    await page.keyboard.press("Enter");
    await page.getByText(/This key is wrong/).waitFor();
    assert.equal(await page.getByRole("listitem").count(), 0);
    assert.deepEqual(harness.errors, []);
  });

  test("the link opens the page, and the key leaves the address", async () => {
    const { page } = harness;
    await page.goto(`${harness.url}?fresh#key=${harness.key}`);
    await page.getByText("3 nodes").waitFor();
    assert.equal(page.url(), harness.url);
  });

  test("an empty conversation offers beginnings and says what is trusted", async () => {
    const { page } = harness;
    assert.equal(await page.locator(".starter").count(), 4);
    await page.getByRole("button", { name: /Compare/ }).click();
    assert.match(await harness.message.inputValue(), /PostgreSQL and SQLite/);
    await harness.message.fill("");
    await page.getByText("What you trust").click();
    await page.getByText("It does not prove that the model ran.").waitFor();
    await harness.checkAxe("empty");
    await page.getByText("What you trust").click();
  });

  test("while no node was found the page says so at once, and everything else works", async () => {
    const { page } = harness;
    await page.route("**/api/nodes", (route) => route.fulfill({ json: { nodes: [] } }));
    await page.route("**/api/sessions/*/turns", async (route) => {
      await new Promise((done) => setTimeout(done, 4500));
      await route.fulfill({ status: 503, json: { error: { message: "no node was found", code: "no_node" } } });
    });
    await page.reload();
    await page.getByText("No node found; still looking").waitFor();
    await harness.message.fill("is anybody there?");
    await page.keyboard.press("Enter");
    await page.getByText("Looking for nodes…", { exact: true }).waitFor();
    await page.getByText("Looking for nodes… 2 s").waitFor();
    await page.getByText("No node was found.").first().waitFor();
    // The endpoint never had this message: it is back in the box, and no conversation is left of it.
    assert.equal(await harness.message.inputValue(), "is anybody there?");
    assert.equal(await harness.list.getByRole("listitem").count(), 0);
    assert.equal(page.url(), harness.url);
    await harness.message.fill("");
    await page.unroute("**/api/nodes");
    await page.unroute("**/api/sessions/*/turns");
    harness.errors.length = 0;
    await page.reload();
    await page.getByText("3 nodes").waitFor();
  });
}

export function lastTests(harness) {
  test("nothing was asked of anybody else, and the console has no error", () => {
    assert.deepEqual(harness.elsewhere, []);
    assert.deepEqual(harness.errors, []);
  });
}
