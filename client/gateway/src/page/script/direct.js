// A client in this page, where only files are served: it answers the page's requests as `baton serve` does.
//
// The keys of conversations stay in this browser. After a reload, each conversation is read back from the store.

import { notice } from "./dom.js";
import { loadWords, removeWords, saveWords } from "./session_words.js";
import { plural } from "./words.js";

/** Where the nodes and the store are. Its fields are the options of @baton/client. */
const SETTINGS = "/baton.json";
const MODULE = "/baton/baton_browser.js";
const RESTORED_AT_ONCE = 4;
/** The list of conversations waits no longer for those that are still read back. */
const LIST_WAIT_MS = 5_000;

const SESSION = /^\/api\/sessions\/([\da-f]{64})/;

/** Starts the client. */
export async function openClient() {
  const answer = await fetch(SETTINGS);
  if (!answer.ok) throw new Error(`The settings of this page are missing: ${SETTINGS} (HTTP ${answer.status}).`);
  const { default: init, BatonClient } = await import(MODULE);
  await init();
  const client = new DirectClient(await BatonClient.open(await answer.json()));
  await client.readBack();
  return client;
}

/** The client, and the conversations that this browser has saved. */
export class DirectClient {
  #client;
  /** Conversations that are being read back, by id. @type {Map<string, Promise<void>>} */
  #coming = new Map();
  #known = new Set();

  constructor(client) {
    this.#client = client;
  }

  /** Begins to read back all saved conversations, newest first. */
  async readBack() {
    const all = await loadWords();
    let next = 0;
    const lost = [];
    const turn = Array.from({ length: RESTORED_AT_ONCE }, () => Promise.resolve());
    for (const { id, words } of all) {
      const lane = next++ % RESTORED_AT_ONCE;
      this.#known.add(id);
      const coming = turn[lane].then(() => this.#client.restore(words)).then(() => {}, (error) => {
        if (error.code === "Deleted") return removeWords(id);
        lost.push(error.message);
      }).finally(() => this.#coming.delete(id));
      turn[lane] = coming;
      this.#coming.set(id, coming);
    }
    Promise.all(this.#coming.values()).then(() => {
      if (lost.length) notice(`${plural(lost.length, "conversation")} could not be read from the store: ${lost[0]}. Reload to try again.`, "bad");
    });
  }

  /** Answers a request, as `fetch` does. */
  async fetch(path, options = {}) {
    const url = new URL(path, location.href);
    const { method = "GET" } = options;
    const id = url.pathname.match(SESSION)?.[1];
    const isList = url.pathname === "/api/sessions" && method === "GET";
    if (id) await this.#coming.get(id);
    if (isList) await Promise.race([Promise.all(this.#coming.values()), new Promise((done) => setTimeout(done, LIST_WAIT_MS))]);
    const response = await this.#client.fetch(new Request(url, options));
    if (response.ok && isList) await this.#save((await response.clone().json()).sessions);
    if (response.ok && id && method === "DELETE") await this.#remove(id);
    return response;
  }

  async #save(sessions) {
    for (const { id, turns } of sessions) {
      if (!turns || this.#known.has(id)) continue;
      this.#known.add(id);
      await saveWords(id, await this.words(id));
    }
  }

  async #remove(id) {
    this.#known.delete(id);
    await removeWords(id);
  }

  /** The 24 words of a conversation: its key. */
  words(id) {
    return this.#client.session(id).words();
  }

  /** Reads a conversation back by its 24 words. @returns {Promise<string>} Its id. */
  async restore(words) {
    return (await this.#client.restore(words)).id;
  }
}
