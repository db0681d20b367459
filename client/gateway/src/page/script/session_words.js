// Saves the words of conversations in this browser, sealed under a key that no script can read out.

const VERSION = 1;
const WRAPPING = "wrapping";
/** Most conversations that are loaded; the oldest is left out first. */
const MOST = 200;

/** @returns {Promise<IDBDatabase>} */
function open() {
  const request = indexedDB.open("baton", VERSION);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("keys");
    request.result.createObjectStore("sessions", { keyPath: "id" });
  };
  return answerOf(request);
}

const answerOf = (request) => new Promise((done, fail) => {
  request.onsuccess = () => done(request.result);
  request.onerror = () => fail(request.error);
});

let database = null;

/** Does one thing in one store. */
async function within(name, mode, work) {
  database ??= open();
  return await answerOf(work((await database).transaction(name, mode).objectStore(name)));
}

/** The key of this browser: it seals and opens, and cannot be exported. */
async function wrappingKey() {
  const known = await within("keys", "readonly", (keys) => keys.get(WRAPPING));
  if (known) return known;
  const key = await crypto.subtle.generateKey({ name: "AES-GCM", length: 256 }, false, ["encrypt", "decrypt"]);
  await within("keys", "readwrite", (keys) => keys.put(key, WRAPPING));
  return key;
}

/** Saves the words of a conversation. */
export async function saveWords(id, words) {
  const key = await wrappingKey();
  const nonce = crypto.getRandomValues(new Uint8Array(12));
  const bytes = new TextEncoder().encode(words);
  const sealed = await crypto.subtle.encrypt({ name: "AES-GCM", iv: nonce, additionalData: new TextEncoder().encode(id) }, key, bytes);
  await within("sessions", "readwrite", (sessions) => sessions.put({ id, nonce, sealed, saved_ms: Date.now() }));
}

/** The saved conversations with their words, newest first. @returns {Promise<{ id: string, words: string }[]>} */
export async function loadWords() {
  const all = await within("sessions", "readonly", (sessions) => sessions.getAll());
  if (!all.length) return [];
  const key = await wrappingKey();
  all.sort((one, other) => other.saved_ms - one.saved_ms);
  return await Promise.all(all.slice(0, MOST).map(async ({ id, nonce, sealed }) => {
    const bytes = await crypto.subtle.decrypt({ name: "AES-GCM", iv: nonce, additionalData: new TextEncoder().encode(id) }, key, sealed);
    return { id, words: new TextDecoder().decode(bytes) };
  }));
}

/** Removes the words of a conversation. */
export const removeWords = (id) => within("sessions", "readwrite", (sessions) => sessions.delete(id));
