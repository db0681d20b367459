// Uses the chat page as a person would: by mouse, by keyboard, and by what a screen reader is told.
//
//   node scripts/page/test_page.mjs --bin target/debug --chromium /usr/bin/chromium [--screenshots FOLDER]
//
// With --url and --key it uses an endpoint that runs already.

import { after, before } from "node:test";
import { parseArgs } from "node:util";

import { accessTests, lastTests } from "./chat/access.mjs";
import { answerTests } from "./chat/answers.mjs";
import { chainTests } from "./chat/chain.mjs";
import { Harness } from "./chat/harness.mjs";
import { layoutTests } from "./chat/layout.mjs";
import { pictures } from "./chat/pictures.mjs";
import { memoryTests } from "./chat/memories.mjs";
import { sessionTests } from "./chat/sessions.mjs";
import { signInTests } from "./chat/signin.mjs";
import { tabTests } from "./chat/tabs.mjs";
import { turnTests } from "./chat/turns.mjs";

const { values } = parseArgs({
  options: {
    bin: { type: "string" }, chromium: { type: "string" }, screenshots: { type: "string" },
    url: { type: "string" }, key: { type: "string" },
  },
});
const harness = new Harness(values);
before(() => harness.open());
after(() => harness.close());

accessTests(harness);
signInTests(harness);
memoryTests(harness);
answerTests(harness);
turnTests(harness);
tabTests(harness);
sessionTests(harness);
chainTests(harness);
layoutTests(harness);
pictures(harness);
lastTests(harness);
