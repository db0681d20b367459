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
  /** A request of the gateway's APIs; with `abortAfter`, it is aborted after so many parts of the answer. */
  async request(path, body, abortAfter = Infinity) {
    const controller = new AbortController();
    const init = body ? { method: "POST", body: JSON.stringify(body) } : {};
    const response = await client.fetch(new Request(path, { ...init, signal: controller.signal }));
    const parts = [];
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      if (parts.length === abortAfter) controller.abort();
    }
    return { status: response.status, type: response.headers.get("content-type"), parts };
  },
  /** The same with OpenAI's library, unmodified: a streamed answer, a whole one, and the code of an error. */
  async openai() {
    const { default: OpenAI } = await import("./openai/index.mjs");
    const openai = new OpenAI({
      apiKey: "none", baseURL: `${location.origin}/v1`, dangerouslyAllowBrowser: true, maxRetries: 0,
      fetch: (url, init) => client.fetch(new Request(url, init)),
    });
    const ask = { model: "echo", messages: [{ role: "user", content: "one two three" }] };
    const parts = [];
    for await (const chunk of await openai.chat.completions.create({ ...ask, stream: true })) parts.push(chunk.choices[0]?.delta.content ?? "");
    const whole = await openai.chat.completions.create({ ...ask, messages: [...ask.messages, { role: "assistant", content: parts.join("") }, { role: "user", content: "four" }] });
    const response = await openai.responses.create({ model: "echo", input: "five" });
    const code = await openai.chat.completions.create({ ...ask, model: "none" }).then(() => null, (error) => error.code);
    return { parts, whole: whole.choices[0].message.content, seq: whole.baton.seq, response: response.output_text, code };
  },
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
