// Markdown as elements. A model's text is never interpreted as HTML: the library only splits it into tokens, and this
// module makes an element for each known token.

import { lexer } from "../vendor/marked.esm.js";
import { codeBlock } from "./code.js";
import { element } from "./dom.js";

const OPTIONS = { gfm: true, breaks: true };
const LINK_PROTOCOLS = ["http:", "https:", "mailto:"];

/** The blocks in each container, to keep those that a longer text repeats. @type {WeakMap<Element, { raw: string, level?: number, node: Node }[]>} */
const rendered = new WeakMap();

/** Shows a text in a container. A longer version of the same text changes only its last blocks. */
export function renderMarkdown(container, text) {
  const before = rendered.get(container) ?? [];
  const tokens = lexer(text, OPTIONS).filter(isShown);
  setLevels(tokens.filter((token) => token.type === "heading"));
  const blocks = tokens.map((token, index) => {
    const same = before[index];
    return same?.raw === token.raw && same.level === token.level ? same : { raw: token.raw, level: token.level, node: block(token) };
  });
  blocks.forEach(({ node }, index) => {
    const here = container.childNodes[index];
    if (here !== node) container.insertBefore(node, here ?? null);
  });
  while (container.childNodes.length > blocks.length) container.lastChild.remove();
  rendered.set(container, blocks);
}

const isShown = (token) => token.type !== "space" && token.type !== "def";

/** Gives each heading its level on the page: below the title, and at most one below the heading before. */
function setLevels(headings) {
  const highest = Math.min(...headings.map((heading) => heading.depth));
  let level = 1;
  for (const heading of headings) {
    level = Math.min(heading.depth - highest + 2, level + 1, 6);
    heading.level = level;
  }
}

function block(token) {
  switch (token.type) {
    case "heading": return element(token.level ? `h${token.level}` : "p", {}, ...inline(token.tokens));
    case "paragraph": return element("p", {}, ...inline(token.tokens));
    case "code": return codeBlock(token.text, token.lang ?? "");
    case "blockquote": return element("blockquote", {}, ...blocksOf(token.tokens));
    case "hr": return element("hr");
    case "list": return list(token);
    case "table": return table(token);
    case "text": return element("p", {}, ...inline(token.tokens ?? [token]));
    default: return element("p", { textContent: token.raw.trim() });
  }
}

const blocksOf = (tokens) => tokens.filter(isShown).map(block);

function list(token) {
  const made = element(token.ordered ? "ol" : "ul");
  if (token.ordered && token.start > 1) made.start = token.start;
  for (const item of token.items) {
    const children = item.tokens.flatMap((child) => {
      if (child.type === "checkbox" || child.type === "space") return [];
      return child.type === "text" ? inline(child.tokens ?? [child]) : [block(child)];
    });
    if (item.task) children.unshift(item.checked ? "☑ " : "☐ ");
    made.append(element("li", {}, ...children));
  }
  return made;
}

function table(token) {
  const cell = (tag) => (one, index) => {
    const made = element(tag, {}, ...inline(one.tokens));
    if (token.align[index]) made.className = token.align[index];
    if (tag === "th") made.scope = "col";
    return made;
  };
  const rows = token.rows.map((row) => element("tr", {}, ...row.map(cell("td"))));
  const whole = element("table", {},
    element("thead", {}, element("tr", {}, ...token.header.map(cell("th")))), element("tbody", {}, ...rows));
  return element("div", { className: "table", tabIndex: 0, aria: { role: "region", label: "Table" } }, whole);
}

function inline(tokens = []) {
  return tokens.map((token) => {
    switch (token.type) {
      case "strong": return element("strong", {}, ...inline(token.tokens));
      case "em": return element("em", {}, ...inline(token.tokens));
      case "del": return element("del", {}, ...inline(token.tokens));
      case "codespan": return element("code", { textContent: token.text });
      case "br": return element("br");
      case "link": return link(token.href, inline(token.tokens));
      // An image would tell its server who reads this.
      case "image": return link(token.href, [`Image: ${token.text || token.href}`]);
      case "text": return token.tokens ? element("span", {}, ...inline(token.tokens)) : decoded(token.text);
      case "escape": return token.text;
      default: return token.raw;
    }
  });
}

function link(href, children) {
  let url = null;
  try {
    url = new URL(href);
  } catch { /* no absolute address */ }
  if (!url || !LINK_PROTOCOLS.includes(url.protocol)) return element("span", { title: href }, ...children);
  return element("a", { href: url.href, target: "_blank", rel: "noopener noreferrer", title: url.href }, ...children);
}

/** A text with its character references as characters. */
function decoded(text) {
  return text.replace(/&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][a-z\d]{1,30});/gi, (reference) =>
    new DOMParser().parseFromString(reference, "text/html").body.textContent);
}
