// Markdown as elements. A model's text is never interpreted as HTML: the library only splits it into tokens, and this
// module makes an element for each known token.

import { Lexer, Tokenizer } from "../vendor/marked.esm.js";
import { codeBlock } from "./code.js";
import { element } from "./dom.js";

const LINK_PROTOCOLS = ["http:", "https:", "mailto:"];
/** Characters. A longer text is shown as it is: each frame of a stream splits the whole text anew. */
const LONGEST_TEXT = 32 * 1024;
/** Characters of a paragraph, heading or cell. The library's time grows with the square of a longer one. */
const LONGEST_RUN = 4 * 1024;
/** Items, cells and paragraphs of a text. A row of a table has as many cells as its first row, also where the text has none. */
const MOST_PARTS = 4 * 1024;
/** Blocks in blocks, and emphasis in emphasis. */
const DEEPEST = 50;
/** Lines of a plain text in one piece. The browser lays out only the pieces in sight. */
const PIECE_LINES = 1000;
/** Milliseconds for a text, and for all texts between two pauses of the page. */
const TEXT_MS = 150, DRAWING_MS = 1000;

/** A formula; its signs are no emphasis, and its backslashes stay. */
const FORMULA = /\$\$[^$]+\$\$|\$(?![\s$])(?:[^$\n]*[^\s$\\])?\$(?!\d)|\\\([^\n]*?\\\)|\\\[[^]*?\\\]/;
const FORMULAS = new RegExp(FORMULA, "g");
const INLINE_FORMULA = new RegExp(`^(?:${FORMULA.source})`);
const BLOCK_FORMULA = /^ {0,3}(?:\$\$[^$]+\$\$|\\\[[^]*?\\\])[ \t]*(?:\n+|$)/;
const REFERENCE = /&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][a-z\d]{1,30});/gi;

const nearest = (...places) => Math.min(...places.filter((place) => place >= 0));
const formula = (type, pattern) => (source) => {
  const raw = pattern.exec(source)?.[0];
  return raw && { type, raw };
};
const EXTENSIONS = {
  block: [formula("formula", BLOCK_FORMULA)],
  startBlock: [(source) => nearest(source.indexOf("\n$$") + 1 || -1, source.indexOf("\n\\[") + 1 || -1)],
  inline: [formula("formula", INLINE_FORMULA)],
  startInline: [(source) => source.indexOf("$")],
};
const HOOKS = { emStrongMask: (source) => source.replace(FORMULAS, (raw) => "+".repeat(raw.length)) };

/** Asks at each step whether the text may cost more. */
class BoundedTokenizer extends Tokenizer {
  space(source) {
    this.lexer.check();
    return super.space(source);
  }

  escape(source) {
    this.lexer.check();
    return super.escape(source);
  }
}

/** The library's lexer with an end: of time, of depth and of parts. */
class BoundedLexer extends Lexer {
  depth = 0;
  parts = 0;

  constructor() {
    super({ gfm: true, breaks: true, extensions: EXTENSIONS, hooks: HOOKS, tokenizer: new BoundedTokenizer() });
  }

  check() {
    checkTime();
    if (this.depth > DEEPEST || this.parts > MOST_PARTS) throw new RangeError("the text has too many parts");
  }

  within(work) {
    this.depth++;
    try {
      this.check();
      return work();
    } finally {
      this.depth--;
    }
  }

  blockTokens(...given) {
    this.parts++;
    return this.within(() => super.blockTokens(...given));
  }

  inlineTokens(...given) { return this.within(() => super.inlineTokens(...given)); }

  inline(...given) {
    this.parts++;
    this.check();
    return super.inline(...given);
  }

  /** The blocks of a text. A costly run in one of them stays as it is; a text with costly blocks throws. */
  lex(text) {
    this.blockTokens(text.replace(/\r\n?/g, "\n"), this.tokens);
    for (const { src, tokens } of this.inlineQueue) {
      this.state.inRawBlock = false;
      try {
        this.check();
        if (src.length > LONGEST_RUN) throw new RangeError("the run is too long");
        this.inlineTokens(src, tokens);
      } catch {
        tokens.splice(0, tokens.length, { type: "plain", raw: src });
      }
    }
    return this.tokens;
  }
}

/**
 * The text in each container; its blocks, to keep those that a longer text repeats, or null where it is plain; and
 * how long it stays plain while it grows.
 * @type {WeakMap<Element, { text: string, plain_until: number, blocks: { raw: string, level?: number, node: Node }[] | null }>}
 */
const rendered = new WeakMap();

/** Milliseconds that texts took since the page last paused. */
let spent = 0;
/** The characters of the references in the text that is drawn. */
let characters = new Map();
/** When the text that is drawn has cost enough. */
let deadline = 0;

/** Ends a text that has cost enough. */
function checkTime() {
  if (performance.now() > deadline) throw new RangeError("the text costs too much");
}

/** Shows a text in a container. A longer version of the same text changes only its last blocks. */
export function renderMarkdown(container, text) {
  const before = rendered.get(container);
  const until = before && text.startsWith(before.text) ? before.plain_until : 0;
  if (text.length > LONGEST_TEXT || text.length < until) return renderPlain(container, text, until);
  const begun = performance.now();
  deadline = begun + Math.min(TEXT_MS, DRAWING_MS - spent);
  try {
    renderBlocks(container, text, before?.blocks ?? []);
    checkTime();
  } catch {
    // While a costly text grows, it is tried anew a few times, not in each frame.
    renderPlain(container, text, 2 * text.length);
  }
  if (!spent) setTimeout(() => { spent = 0; });
  spent += performance.now() - begun;
}

function renderBlocks(container, text, before) {
  const tokens = new BoundedLexer().lex(text).filter(isShown);
  characters = charactersOf(text);
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
  rendered.set(container, { text, plain_until: 0, blocks });
}

/** Shows a text as it is. Of a text that grows, all pieces but the last stay. */
function renderPlain(container, text, until) {
  const before = rendered.get(container);
  const grows = before?.blocks === null && text.startsWith(before.text);
  if (!grows) container.replaceChildren(element("div", { className: "plain", dir: "auto" }));
  const plain = container.firstChild;
  const pieces = piecesOf(text);
  pieces.slice(Math.max(plain.childElementCount - 1, 0)).forEach((piece, index) => {
    const first = index === 0 && plain.lastElementChild?.firstChild;
    if (first) first.appendData(piece.slice(first.length));
    else plain.append(element("div", { textContent: piece }));
  });
  plain.classList.toggle("pieces", pieces.length > 1);
  rendered.set(container, { text, plain_until: until, blocks: null });
}

/** A text in pieces of some lines, each with its last line's end. */
function piecesOf(text) {
  const pieces = [];
  for (let begin = 0, end = 0; begin < text.length; begin = end) {
    for (let lines = 0; lines < PIECE_LINES && end < text.length; lines++) end = text.indexOf("\n", end) + 1 || text.length;
    pieces.push(text.slice(begin, end));
  }
  return pieces;
}

/** Shows a text without Markdown in a container. */
export function showPlain(container, text) {
  renderPlain(container, text, 0);
  return container;
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
  checkTime();
  switch (token.type) {
    case "heading": return element(token.level ? `h${token.level}` : "p", { dir: "auto" }, ...inline(token.tokens));
    case "paragraph": return element("p", { dir: "auto" }, ...inline(token.tokens));
    case "code": return codeBlock(token.text, token.lang ?? "");
    case "blockquote": return element("blockquote", {}, ...blocksOf(token.tokens));
    case "hr": return element("hr");
    case "list": return list(token);
    case "table": return table(token);
    case "text": return element("p", { dir: "auto" }, ...inline(token.tokens ?? [token]));
    default: return element("p", { className: "plain", dir: "auto", textContent: token.raw.trim() });
  }
}

const blocksOf = (tokens) => tokens.filter(isShown).map(block);

function list(token) {
  const made = element(token.ordered ? "ol" : "ul", { dir: "auto" });
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
    const made = element(tag, { dir: "auto" }, ...inline(one.tokens));
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
    checkTime();
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
      case "plain": return element("span", { className: "plain", textContent: token.raw });
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
const decoded = (text) => text.replace(REFERENCE, (reference) => characters.get(reference) ?? reference);

/** The characters of all references in a text. */
function charactersOf(text) {
  const references = [...new Set(text.match(REFERENCE))];
  if (!references.length) return new Map();
  const parsed = new DOMParser().parseFromString(references.map((reference) => `<i>${reference}</i>`).join(""), "text/html");
  return new Map(references.map((reference, index) => [reference, parsed.body.children[index]?.textContent]));
}
