// How answers look: Markdown, code, links, and what is never interpreted.

import assert from "node:assert/strict";
import { test } from "node:test";

export const RICH = `## Two tools

Both are **small** and *fast*, with \`inline code\` and a [link](https://example.org/a).

| Tool | Good for | Rows |
|---|:---:|---:|
| SQLite | one file | 10 |
| PostgreSQL | many writers | 1000 |

1. first
2. second
   - nested
   - [x] done

> A quotation &amp; more.

\`\`\`python
def greet(name: str) -> str:
    """Say hello."""
    return f"hello {name}"  # a comment
\`\`\`
`;

/** Answers that cost a reader of Markdown much: each fills its length. */
const COSTLY = [
  [">", 2_500], [">", 60_000], ["a.", 60_000], ["- ", 60_000], ["1.\n", 32_000], ["[", 60_000], ["![", 4_000], ["*a", 60_000], ["_a ", 32_000],
  ["**a ", 4_000], ["~a", 4_000], ["`*", 4_000], ["`".repeat(50) + " ", 32_000], ["<a ", 60_000], ["<", 32_000], ["<!--", 32_000], ["|-|\n", 32_000],
  ["[a]: b \"\n", 32_000], ["\n```", 32_000], ["\n$$", 32_000], ["\\(", 4_000], ["$", 32_000], ["&amp;", 32_000], ["a@", 60_000], ["> - 1. ", 32_000],
  [`${"|a".repeat(1000)}|\n${"|-".repeat(1000)}|\n${"|\n".repeat(9000)}`, 32_000], ["http://", 60_000], ["\n", 500_000], ["a\n", 500_000], ["word ", 500_000],
];

export function answerTests(harness) {
  test("no answer hides the others or stops the page", async () => {
    const { page } = harness;
    await harness.newConversation();
    await harness.say("a beginning");
    for (const [part, length] of COSTLY) {
      const costly = part.repeat(Math.ceil(length / part.length)).slice(0, length);
      const change = (shown) => {
        const [turn] = shown.turns;
        const texts = ["before", `${costly}@`, "after"];
        shown.turns = texts.map((content, seq) => ({ ...turn, seq, messages: [turn.messages[0], { ...turn.messages.at(-1), content }] }));
      };
      await page.addInitScript(() => {
        globalThis.longest_ms = 0;
        new PerformanceObserver((list) => { for (const task of list.getEntries()) globalThis.longest_ms = Math.max(globalThis.longest_ms, task.duration); })
          .observe({ type: "longtask", buffered: true });
      });
      await harness.withSession(change, async () => {
        await page.locator(".answer", { hasText: "after" }).waitFor();
        const name = JSON.stringify([part.slice(0, 12), length]);
        assert.equal(await harness.turns.count(), 3, name);
        const longest_ms = await page.evaluate(() => globalThis.longest_ms);
        if (process.env.BATON_PAGE_TIMES) console.log(name, longest_ms);
        assert.ok(longest_ms < 1000, `${name} stopped the page for ${longest_ms} ms`);
      });
    }
  });

  test("long code stays plain: its colours would stop the page", async () => {
    const { page } = harness;
    const code = (lines) => `\`\`\`rust\n${"let text = r#\"'a\"#;\n".repeat(lines)}\`\`\``;
    for (const [lines, isColoured] of [[20, true], [1500, false]]) {
      await harness.withSession((shown) => { shown.turns[0].messages.at(-1).content = code(lines); }, async () => {
        await page.locator("pre code").waitFor();
        if (isColoured) await page.locator("pre .hljs-keyword").first().waitFor();
        await page.waitForTimeout(200);
        assert.equal(await page.locator("pre .hljs-keyword").count() > 0, isColoured, `${lines} lines`);
        assert.equal((await page.locator("pre code").textContent()).split("\n").filter(Boolean).length, lines);
      });
    }
  });

  test("formulas keep their signs", async () => {
    const { page } = harness;
    const text = "So $a_1\\,b$ and $c_2$ and \\(x_1*y*z\\) for $5 or $10.\n\n$$\n- a_1 \\\\\n$$";
    await harness.withSession((shown) => { shown.turns[0].messages.at(-1).content = text; }, async () => {
      const answer = page.locator(".answer").first();
      assert.equal(await answer.locator("em, li").count(), 0);
      assert.equal(await answer.evaluate((made) => [...made.children].map((one) => one.textContent).join("\n\n")), text);
    });
  });

  test("Markdown is shown while it streams, and after", async () => {
    const { page } = harness;
    await harness.newConversation();
    await harness.message.fill(`**bold words** and \`code\` ${"and more ".repeat(60)}`);
    await page.keyboard.press("Enter");
    await page.locator(".running .answer strong", { hasText: "bold words" }).waitFor();
    await page.locator(".running .answer code", { hasText: "code" }).waitFor();
    await harness.verified.first().waitFor();
    await harness.withSession((shown) => { shown.turns[0].messages.at(-1).content = RICH; }, async () => {
      const answer = page.locator(".answer").first();
      await answer.getByRole("heading", { name: "Two tools" }).waitFor();
      const table = answer.getByRole("table");
      assert.equal(await table.getByRole("row").count(), 3);
      assert.equal(await table.getByRole("cell", { name: "1000" }).getAttribute("class"), "right");
      assert.equal(await answer.locator("ol > li").count(), 2);
      assert.match(await answer.locator("ol ul").textContent(), /nested.*☑ done/s);
      assert.match(await answer.locator("blockquote").textContent(), /A quotation & more\./);
      const link = answer.getByRole("link", { name: "link" });
      assert.deepEqual([await link.getAttribute("href"), await link.getAttribute("rel")], ["https://example.org/a", "noopener noreferrer"]);
      await answer.locator("pre .hljs-keyword", { hasText: "def" }).waitFor();
      assert.equal(await answer.locator(".code-head span").textContent(), "python");
      await harness.checkAxe("answer");
    });
  });

  test("code and answers are copied", async () => {
    const { page } = harness;
    const clipboard = () => page.evaluate(() => navigator.clipboard.readText());
    await harness.withSession((shown) => { shown.turns[0].messages.at(-1).content = RICH; }, async () => {
      await page.getByRole("button", { name: "Copy code" }).click();
      await page.getByRole("button", { name: "Copied" }).waitFor();
      assert.match(await clipboard(), /^def greet/);
      await page.getByRole("button", { name: "Copy answer" }).click();
      assert.equal(await clipboard(), RICH);
      await page.getByRole("button", { name: "Copy message" }).click();
      assert.match(await clipboard(), /^\*\*bold words/);
    });
  });

  test("markup, scripts, images and other addresses of a model are text", async () => {
    const { page } = harness;
    const hostile = "<b>bold</b> <img src=x onerror=alert(1)>\n\n<script>alert(2)</script>\n\n[run](javascript:alert(3)) [file](file:///etc/passwd) ![seen](https://example.org/pixel.png)\n\n```html\n<img src=x onerror=alert(4)>\n```";
    await harness.withSession((shown) => { shown.turns[0].messages.at(-1).content = hostile; }, async () => {
      const answer = page.locator(".answer").first();
      await answer.locator("pre .hljs-tag").first().waitFor();
      assert.equal(await answer.locator("img, b, script").count(), 0);
      assert.match(await answer.textContent(), /<b>bold<\/b> <img src=x/);
      assert.deepEqual(await answer.getByRole("link").evaluateAll((links) => links.map((link) => link.href)), ["https://example.org/pixel.png"]);
      assert.equal(await answer.getByRole("link").textContent(), "Image: seen");
    });
  });

  test("an answer cut by its limit says so and goes on", async () => {
    const { page } = harness;
    await harness.withSession((shown) => { if (shown.turns.length === 1) shown.turns[0].finish = "length"; }, async () => {
      await page.getByText(/The answer stopped at its limit of \d+ tokens\./).waitFor();
      await page.getByRole("button", { name: "Continue" }).click();
      await harness.verified.nth(1).waitFor();
      assert.equal(await page.locator(".said").last().textContent(), "Continue.");
    });
  });

  test("a receipt is readable, names the model, and has the exact seed", async () => {
    const { page } = harness;
    const change = (shown) => {
      Object.assign(shown.turns[0], { model: "small-model", stored: true, kept_until_ms: Date.UTC(2031, 0, 17, 12), acked: true });
      shown.turns[0].receipt.seed = "4756302163942736739";
    };
    await harness.withSession(change, async () => {
      await harness.verified.first().click();
      const dialog = page.getByRole("dialog", { name: "Turn 1" });
      const text = await dialog.textContent();
      assert.match(text, /Answered by [\da-f]{8} with small-model in .* tokens? after reading \d+\./);
      assert.match(text, /Both sides signed\./);
      assert.match(text, /Stored until [^.]*2031 at least/);
      await dialog.getByText("Hashes and numbers").click();
      assert.equal(await dialog.locator("dt:text-is('Seed') + dd").textContent(), "4756302163942736739");
      await harness.checkAxe("receipt");
      await page.keyboard.press("Escape");
    });
  });

  test("beside verified stands that a turn is not stored yet", async () => {
    const { page } = harness;
    await harness.withSession((shown) => { shown.turns[0].stored = false; shown.turns[0].kept_until_ms = null; shown.unstored = 1; }, async () => {
      assert.match(await page.locator(".marks").first().textContent(), /Verified.*not stored yet/);
    });
  });
}
