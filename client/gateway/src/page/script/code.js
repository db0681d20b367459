// Blocks of code: their language, a button that copies them, and colours.

import highlighter from "../vendor/highlight/core.min.js";
import { copy, element, iconButton } from "./dom.js";

/** Names of languages with the file of each. */
const FILES = {
  bash: "bash", sh: "bash", shell: "bash", zsh: "bash", console: "bash", c: "c", h: "c", cpp: "cpp", "c++": "cpp", cc: "cpp",
  css: "css", diff: "diff", patch: "diff", go: "go", golang: "go", html: "xml", java: "java", javascript: "javascript",
  js: "javascript", jsx: "javascript", json: "json", markdown: "markdown", md: "markdown", py: "python", python: "python",
  rs: "rust", rust: "rust", sql: "sql", svg: "xml", ts: "typescript", tsx: "typescript", typescript: "typescript",
  xml: "xml", yaml: "yaml", yml: "yaml",
};
/** Characters. Longer code stays plain: each frame of a stream colours the last block anew. */
const MOST_COLOURED = 10_000;
/** Milliseconds of colouring between two pauses of the page; the code after it stays plain. */
const COLOURING_MS = 300;

/** Milliseconds of colouring since the page last paused. */
let spent = 0;

/** @param {string} code @param {string} info The text after the fence, which begins with the language. */
export function codeBlock(code, info) {
  const language = info.trim().split(/[\s,{]/)[0].toLowerCase();
  const text = element("code", { textContent: code });
  if (FILES[language] && code.length <= MOST_COLOURED) colour(text, code, FILES[language]);
  const button = iconButton("copy", "Copy code", () => copy(code, button));
  return element("div", { className: "code" },
    element("div", { className: "code-head" }, element("span", { textContent: language || "text" }), button),
    element("pre", { tabIndex: 0, aria: { label: `Code${language && `, ${language}`}` , role: "group" } }, text));
}

/** Colours at once if the language was loaded, so that a stream does not flicker; else when it is. */
function colour(place, code, file) {
  if (highlighter.getLanguage(file)) return paint(place, code, file);
  import(`../vendor/highlight/${file}.min.js`).then((language) => {
    highlighter.registerLanguage(file, language.default);
    paint(place, code, file);
  }, () => { /* The code stays plain. */ });
}

function paint(place, code, language) {
  if (spent > COLOURING_MS) return;
  const begun = performance.now();
  const { value } = highlighter.highlight(code, { language, ignoreIllegals: true });
  const parsed = new DOMParser().parseFromString(value, "text/html");
  place.replaceChildren(...plain(parsed.body));
  if (!spent) setTimeout(() => { spent = 0; });
  spent += performance.now() - begun;
}

/** Copies only text, and spans with the library's class names. */
function plain(from) {
  return [...from.childNodes].map((node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data;
    const className = [...node.classList].filter((name) => /^(hljs-[\w-]+|[a-z]+_)$/.test(name)).join(" ");
    return element("span", { className }, ...plain(node));
  });
}
