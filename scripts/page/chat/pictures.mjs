// The pictures of docs/images, from a sample conversation: the test nodes only repeat the message.

import { test } from "node:test";

const NODES = ["952a26c1", "cc350ddc", "2f7be0a4"].map((start) => start.repeat(8));
const DAY_MS = 86_400_000;

const ANSWERS = [
  ["How do I read a large CSV file in Python without loading it whole?", `Read it row by row. The \`csv\` module keeps one row in memory at a time:

\`\`\`python
import csv
from collections import Counter

def count_by(path: str, column: str) -> Counter:
    """Count the values of one column."""
    with open(path, newline="") as file:
        return Counter(row[column] for row in csv.DictReader(file))
\`\`\`

For columns of numbers, **Polars** scans lazily and is much faster.`],
  ["Compare csv, pandas and Polars for this.", `| Library | Memory | Speed | Good for |
|---|---|---:|---|
| \`csv\` | one row | 1× | simple passes |
| pandas | chunks | 3× | existing code |
| Polars | lazy scan | 20× | filters, groups |

Choose **Polars** if you group or join, and \`csv\` if a loop is enough.`],
];
const MORE = ["Show the Polars version.", "Does it also read gzip?", "Write tests for count_by.", "Use pytest fixtures instead.", "Now as a command-line tool."];

function turn(seq, question, answer, changes = {}) {
  return {
    seq, segment: 0, node: NODES[[0, 1, 1, 2, 0, 0, 2][seq % 7]], time_ms: Date.now() - (9 - seq) * 60_000, link: String(seq).repeat(64).slice(0, 64),
    messages: [{ role: "user", content: question }, { role: "assistant", content: answer }], kind: "turn", finish: "stop",
    replaces_from: null, replaced_by: null, model: "Qwen3-4B-Instruct", stored: true, kept_until_ms: Date.now() + 53 * DAY_MS, acked: true, took_over: [],
    receipt: { hash: "7d".repeat(32), model: "c1".repeat(32), engine: "native", input_tokens: 412, output_tokens: 186, memory_items: 0,
      seed: "4756302163942736739", price: 0, first_token_ms: 240, decode_ms: 4900 },
    ...changes,
  };
}

function sample(long) {
  const turns = ANSWERS.map(([question, answer], seq) => turn(seq, question, answer));
  turns[1].took_over = [{ node: NODES[0], tokens: 41 }];
  if (long) {
    turns.push(...MORE.map((question, index) => turn(index + 2, question, "Yes: `pl.scan_csv` reads it, and the filter runs while it reads.")));
    Object.assign(turns[4], { replaced_by: 5 });
    Object.assign(turns[5], { replaces_from: 4 });
    Object.assign(turns[6], { stored: false, kept_until_ms: null });
  }
  return turns;
}

const ID = "5a".repeat(32);

export function pictures(harness) {
  test("pictures", { skip: harness.options.screenshots ? false : "only with --screenshots" }, async () => {
    const { page } = harness;
    let long = false;
    const titles = [["Reading large CSV files in Python", 0], ["A week in Lisbon", 0], ["Rust lifetimes, explained", 1], ["Letter to the landlord", 1], ["Bread without kneading", 3]];
    const sessions = titles.map(([title, days], index) => ({ id: index ? String(index).repeat(64) : ID, title, turns: 7, used_ms: Date.now() - days * DAY_MS, branch_of: null }));
    sessions[2].branch_of = { session: ID, link: "2".repeat(64) };
    await page.route("**/api/sessions", (route) => route.fulfill({ json: { sessions } }));
    await page.route("**/api/nodes", (route) => route.fulfill({ json: { nodes: NODES.map((node) => ({ node, models: ["Qwen3-4B-Instruct"], connected: true, slots: 4 })) } }));
    await page.route(`**/api/sessions/${ID}**`, (route) => route.fulfill({
      json: { id: ID, created_ms: 0, turns: sample(long), replaced: 0, system: [], branch_of: null, pending: null, pending_text: null, unstored: 0, kept_until_ms: null, trouble: null },
    }));
    const open = async (width, height, colorScheme) => {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height });
      await page.goto(`${harness.url}c/${ID}`);
      await page.locator("pre .hljs-keyword").first().waitFor();
      await page.getByText("3 nodes").waitFor({ state: "attached" });
      await page.mouse.move(width / 2, 5);
    };
    const top = () => page.locator("#log").evaluate((log) => { log.scrollTop = 0; });
    await open(1280, 860, "light");
    await top();
    await harness.screenshot("chat-page");
    await open(390, 780, "light");
    await top();
    await harness.screenshot("chat-page-phone");
    long = true;
    await open(1180, 700, "dark");
    await page.getByRole("button", { name: "Chain" }).click();
    await harness.screenshot("chat-page-chain");
    await page.unrouteAll({ behavior: "wait" });
    await page.emulateMedia({ colorScheme: "light" });
    await page.setViewportSize({ width: 1100, height: 720 });
  });
}
