// Memory in the settings: to see, edit and forget what a relayer remembers. The relayer is played by the test.

import assert from "node:assert/strict";
import { test } from "node:test";

import { inContext } from "./harness.mjs";

const item = (number, project = "anna") => ({
  id: number.toString(16).padStart(32, "0"), text: `memory ${number}`, kind: number % 2 ? "fact" : "episode", created: "2026-01-17T10:00:00Z", project,
});
const SAID = { summary: "", details: [], relayer: [] };

/** Opens the memories of a page whose endpoint has these. @returns the requests that change some */
async function opened(harness, context, all, owner) {
  const page = await context.newPage();
  const requests = [];
  await page.route("**/api/defaults", (route) => route.fulfill({
    json: { model: null, temperature: 0.7, max_tokens: null, memory: "recall", relayer: "r.example", owner, privacy: SAID, privacy_without_memory: SAID },
  }));
  await page.route("**/api/memory**", (route) => {
    const url = new URL(route.request().url());
    const wanted = Object.fromEntries(url.searchParams);
    const fits = (one) => (!wanted.query || one.text.includes(wanted.query)) && (!wanted.kind || one.kind === wanted.kind) && (!wanted.project || one.project === wanted.project);
    if (route.request().method() === "GET") return route.fulfill({ json: { items: all.filter(fits) } });
    requests.push(`DELETE ${url.search}`);
    const left = all.filter((one) => !fits(one));
    const deleted = all.length - left.length;
    all.splice(0, all.length, ...left);
    return route.fulfill({ json: { deleted } });
  });
  await page.route("**/api/memory/*", (route) => {
    const [method, id] = [route.request().method(), route.request().url().split("/").at(-1)];
    const index = all.findIndex((one) => one.id === id);
    requests.push(`${method} ${id.slice(-2)}`);
    if (all[index].text === "memory 3") return route.fulfill({ status: 502, json: { error: { message: "the relayer cannot be asked (is it running? baton doctor)", code: "relayer_failed" } } });
    if (method === "DELETE") {
      all.splice(index, 1);
      return route.fulfill({ json: { deleted: 1 } });
    }
    all[index] = { ...all[index], id: "f".repeat(32), text: route.request().postDataJSON().text };
    return route.fulfill({ json: all[index] });
  });
  await page.goto(`${harness.url}#key=${harness.key}`);
  await page.getByText("What shall we work on?").waitFor();
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByRole("button", { name: "See and forget memories…" }).click();
  const dialog = page.getByRole("dialog", { name: "Memories" });
  await dialog.waitFor();
  return { page, dialog, requests, rows: dialog.locator("#memoryList > li") };
}

export function memoryTests(harness) {
  test("a person with a key sees its memories, more on demand, and edits and forgets them", async () => {
    await inContext(harness, async (context) => {
      const all = Array.from({ length: 45 }, (_, number) => item(number + 1));
      const { page, dialog, requests, rows } = await opened(harness, context, all, false);
      await rows.nth(19).waitFor();
      assert.equal(await rows.count(), 20);
      assert.equal(await dialog.getByLabel("Project").isVisible(), false);
      await harness.checkAxe("memories", page);
      for (const [width, height, colorScheme] of [[1280, 800, "light"], [390, 780, "dark"]]) {
        await page.setViewportSize({ width, height });
        await page.emulateMedia({ colorScheme });
        await harness.screenshot(`memories-${width}-${colorScheme}`, page);
      }
      await dialog.getByRole("button", { name: "Show more" }).click();
      await dialog.getByRole("button", { name: "Show more" }).click();
      assert.equal(await rows.count(), 45);
      assert.equal(await dialog.getByRole("button", { name: "Show more" }).isVisible(), false);

      await rows.first().getByRole("button", { name: "Edit" }).click();
      await dialog.getByLabel("Memory", { exact: true }).fill("I like tea.");
      await dialog.getByRole("button", { name: "Save" }).click();
      await rows.first().getByText("I like tea.").waitFor();
      await rows.nth(1).getByRole("button", { name: "Forget" }).click();
      await page.getByRole("dialog", { name: /Forget this memory for good/ }).getByRole("button", { name: "Forget" }).click();
      await dialog.getByText("Forgotten.").waitFor();
      assert.equal(await rows.count(), 20 + 20 + 4);

      await rows.nth(1).getByRole("button", { name: "Edit" }).click();
      await dialog.getByLabel("Memory", { exact: true }).fill("other");
      await dialog.getByRole("button", { name: "Save" }).click();
      await dialog.getByText("the relayer cannot be asked (is it running? baton doctor)").waitFor();
      await dialog.getByRole("button", { name: "Cancel" }).click();

      await dialog.getByLabel("Search").fill("memory 44");
      await dialog.locator("#memoryList > li:only-child").getByText("memory 44").waitFor();
      assert.equal(await dialog.getByRole("button", { name: /Forget all/ }).isVisible(), false, "a query forgets nothing together");
      await dialog.getByLabel("Search").fill("");
      await rows.nth(19).waitFor();
      await dialog.getByRole("button", { name: "Forget all…" }).click();
      await page.getByRole("dialog", { name: /all memories of this key/ }).getByRole("button", { name: "Forget all" }).click();
      await dialog.getByText("44 forgotten.").waitFor();
      assert.equal(await rows.count(), 0);
      assert.deepEqual(requests, ["PATCH 01", "DELETE 02", "PATCH 03", "DELETE "]);
    });
  });

  test("the owner sees whose memories they are, and names those that are forgotten together", async () => {
    await inContext(harness, async (context) => {
      const all = [item(1), item(2, "ben"), item(4, null)];
      const { page, dialog, requests, rows } = await opened(harness, context, all, true);
      await rows.nth(2).waitFor();
      await rows.nth(1).getByText("Exchange").getByText("ben").waitFor();
      assert.equal(await dialog.getByRole("button", { name: /Forget all/ }).isVisible(), false, "a slip forgets nothing");
      await dialog.getByLabel("Project").selectOption("ben");
      await rows.nth(1).waitFor({ state: "detached" });
      await dialog.getByRole("button", { name: "Forget all of these…" }).click();
      await page.getByRole("dialog", { name: /all memories of ben/ }).getByRole("button", { name: "Forget all" }).click();
      await dialog.getByText("1 forgotten.").waitFor();
      assert.deepEqual(requests, ["DELETE ?project=ben"]);
      assert.deepEqual(all.map((one) => one.project), ["anna", null]);
    });
  });
}
