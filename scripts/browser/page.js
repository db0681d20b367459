// What a page does with @baton/client: the test calls these functions.
import init, { BatonClient } from "./baton_browser.js";

await init();
let client, session;

globalThis.baton = {
  async open(options) {
    client = await BatonClient.open(options);
    return (await client.nodes()).length;
  },
  async nodes() {
    return await client.nodes();
  },
  async begin() {
    session = await client.newSession();
    return session.id;
  },
  async restore(words) {
    session = await client.restore(words);
    return session.id;
  },
  async say(text, options) {
    const events = [];
    const onEvent = (event) => {
      events.push(event);
      globalThis.onBatonEvent?.(event);
    };
    const answer = await session.say(text, { ...options, onEvent });
    return { answer, events };
  },
  history: () => session.history(),
  verify: () => session.verify(),
  words: () => session.words(),
  settled: (seconds) => session.settled(seconds),
  exportText: () => session.exportText(),
  /** The code and the words of the error of a call. */
  async refused(name, ...values) {
    try {
      await globalThis.baton[name](...values);
    } catch (error) {
      return { code: error.code, message: error.message, isError: error instanceof Error };
    }
    return null;
  },
};
globalThis.isReady = true;
