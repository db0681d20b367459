// The conversations: addresses, list, search, names, export, deletion.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

export function sessionTests(harness) {
  test("each conversation has an address, for back, forward and reload", async () => {
    const { page } = harness;
    await harness.newConversation();
    await harness.say("the sea is blue");
    const sea = page.url();
    assert.match(sea, /\/c\/[\da-f]{64}$/);
    await harness.newConversation();
    assert.equal(page.url(), harness.url);
    await harness.say("the hill is green");
    const hill = page.url();
    await harness.list.getByRole("link", { name: "the sea is blue" }).click();
    await page.getByRole("heading", { name: "the sea is blue" }).waitFor();
    await page.goBack();
    await page.waitForURL(hill);
    await page.getByRole("heading", { name: "the hill is green" }).waitFor();
    await page.goForward();
    await page.waitForURL(sea);
    await page.reload();
    await page.locator(".said", { hasText: "the sea is blue" }).waitFor();
    await harness.verified.first().waitFor();
    assert.equal(await page.title(), "the sea is blue · Baton");
    await page.goto(`${harness.url}c/${"0".repeat(64)}`);
    await page.getByText("This conversation is not on this device.").waitFor();
    harness.errors.length = 0;
    await page.goto(sea);
    await harness.verified.first().waitFor();
  });

  test("titles are short, in the list and above the conversation", async () => {
    const { page } = harness;
    await harness.newConversation();
    await harness.say("a very long beginning ".repeat(20));
    assert.ok((await page.locator("#title").textContent()).length <= 61);
    const name = harness.list.locator("[aria-current] .name");
    assert.ok((await name.textContent()).length <= 61);
    assert.equal(await name.getAttribute("dir"), "auto");
    // A title has the whole width until its button is seen.
    await harness.newConversation();
    await harness.message.hover();
    const long = harness.list.getByRole("listitem").filter({ hasText: "a very long beginning" });
    const width = (place) => place.evaluate((shown) => shown.getBoundingClientRect().width);
    const whole = await width(long);
    assert.ok(await width(long.locator(".name")) > whole - 24);
    await long.hover();
    assert.ok(await width(long.locator(".name")) < whole - 32);
  });

  test("a search finds the texts of conversations", async () => {
    const { page } = harness;
    await page.keyboard.press("Alt+f");
    await page.getByLabel("Search conversations").fill("green");
    await harness.list.getByText("Found", { exact: true }).waitFor();
    assert.equal(await harness.list.getByRole("listitem").count(), 1);
    assert.match(await harness.list.getByRole("listitem").textContent(), /the hill is green/);
    await page.getByLabel("Search conversations").fill("nothing has these words");
    await harness.list.getByText("Nothing was found.").waitFor();
    await page.keyboard.press("Escape");
    await harness.list.getByText("Today").waitFor();
  });

  test("a conversation is renamed", async (context) => {
    const { page } = harness;
    await harness.list.getByRole("link", { name: "the sea is blue" }).click();
    await page.getByRole("heading", { name: "the sea is blue" }).waitFor();
    const id = page.url().slice(-64);
    const served = await page.evaluate(async (path) => {
      const headers = { authorization: `Bearer ${localStorage.getItem("key")}`, "content-type": "application/json" };
      return (await fetch(path, { method: "PATCH", headers, body: "{\"title\":null}" })).ok;
    }, `/api/sessions/${id}`);
    if (!served) {
      harness.errors.length = 0;
      return context.skip("the endpoint does not rename yet");
    }
    await harness.choose("Rename");
    await page.getByRole("dialog", { name: "Rename" }).getByLabel("Title").fill("Colours of water");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Colours of water" }).waitFor();
    await harness.list.getByRole("link", { name: "Colours of water" }).waitFor();
    await harness.choose("Rename");
    await page.getByRole("dialog", { name: "Rename" }).getByLabel("Title").fill("");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "the sea is blue" }).waitFor();
  });

  test("a conversation is exported as Markdown and with its proofs", async () => {
    const { page } = harness;
    const saved = async (entry) => {
      const [download] = await Promise.all([page.waitForEvent("download"), harness.choose(entry)]);
      return [download.suggestedFilename(), readFileSync(await download.path(), "utf8")];
    };
    const [name, text] = await saved("Export as Markdown");
    assert.equal(name, "the-sea-is-blue.md");
    assert.match(text, /\nExported on [^\n]*\b20\d\d\b[^\n]* from session/);
    assert.match(text, /^# the sea is blue\n[^]*\*\*You:\*\*\n\n> the sea is blue\n\n[^]*the sea is blue\n\n<sub>Turn 1: node [\da-f]{8}, .*receipt [\da-f]{8}<\/sub>\n$/);
    const exported = JSON.parse((await saved("Export with proofs"))[1]);
    assert.ok(!("root" in exported) || exported.root === null, "an export is evidence, and not the key");
  });

  test("deleting is always offered, and asks first", async () => {
    const { page } = harness;
    const item = harness.list.getByRole("listitem").filter({ hasText: "the hill is green" });
    const before = await harness.list.getByRole("listitem").count();
    await item.hover();
    await item.getByRole("button", { name: /More for/ }).click();
    await page.getByRole("menuitem", { name: "Delete" }).click();
    await page.getByRole("dialog").getByText("Delete “the hill is green”").waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    await page.getByText("Deleted.").waitFor();
    assert.equal(await harness.list.getByRole("listitem").count(), before - 1);
    await page.getByRole("heading", { name: "the sea is blue" }).waitFor();
  });
}
