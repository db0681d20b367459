// Numbers, times and names in words.

const number = new Intl.NumberFormat();

/** `plural(2, "turn")` is "2 turns". */
export const plural = (count, thing) => `${number.format(count)} ${thing}${count === 1 ? "" : "s"}`;

/** The beginning of an id, which is enough to tell ids apart. */
export const short = (id) => id.slice(0, 8);

export const seconds = (ms) => (ms < 10 ? `${ms} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`);

/** A day: without its year in this year. */
export function day(ms) {
  const date = new Date(ms);
  const year = date.getFullYear() === new Date().getFullYear() ? undefined : "numeric";
  return date.toLocaleDateString([], { day: "numeric", month: "short", year });
}

const MIDNIGHT = () => new Date().setHours(0, 0, 0, 0);
const DAY_MS = 86_400_000;

/** The group of the list for a time. */
export function period(ms) {
  const ago = MIDNIGHT() - ms;
  if (ago <= 0) return "Today";
  if (ago <= DAY_MS) return "Yesterday";
  return ago <= 7 * DAY_MS ? "Last 7 days" : "Older";
}

/** A title of one short line, without the marks of Markdown. */
export function shortTitle(text, length = 60) {
  const line = text.slice(0, 20 * length).replace(/\*\*|`+|^\s*#+ /gm, "").replace(/\s+/g, " ").trim();
  return [...line].length > length ? `${[...line].slice(0, length).join("").trimEnd()}…` : line;
}

/** The model of a turn by name; the beginning of its hash if no node named it since the endpoint started. */
export function modelName(turn) {
  if (turn.model) return turn.model;
  return turn.receipt ? `model ${short(turn.receipt.model)}` : "an unknown model";
}

const COLOURS = 8;

/**
 * The colour of each node: by its id, and by the next free colour if two would share one.
 * @param {{ node: string, took_over?: { node: string }[] }[]} turns
 * @returns {Map<string, number>}
 */
export function nodeColours(turns) {
  const colours = new Map();
  const nodes = turns.flatMap((turn) => [...(turn.took_over ?? []).map((begun) => begun.node), turn.node]);
  for (const node of nodes) {
    if (colours.has(node)) continue;
    const taken = new Set(colours.values());
    let colour = parseInt(node.slice(0, 8), 16) % COLOURS;
    while (taken.has(colour) && taken.size < COLOURS) colour = (colour + 1) % COLOURS;
    colours.set(node, colour);
  }
  return colours;
}
