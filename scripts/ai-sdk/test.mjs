// Drives the providers of the AI SDK, unmodified: a text, its events, a call of a tool, and an object.
//
//   OPENAI_BASE_URL=http://127.0.0.1:8788/v1 OPENAI_API_KEY=KEY node test.mjs MODEL

import assert from 'node:assert/strict';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateObject, generateText, jsonSchema, streamText, tool } from 'ai';

const [model] = process.argv.slice(2);
const options = { baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY };
const providers = {
  responses: createOpenAI(options).responses(model),
  chat: createOpenAI(options).chat(model),
  messages: createAnthropic(options)(model),
  compatible: createOpenAICompatible({ name: 'baton', supportsStructuredOutputs: true, ...options })(model),
};
const schema = jsonSchema({
  type: 'object',
  properties: { name: { type: 'string', maxLength: 12 }, big: { type: 'boolean' } },
  required: ['name', 'big'],
  additionalProperties: false,
});
const prompt = 'Name a city. Answer with its name, and whether it is big.';
const isCity = (city) => typeof city.name === 'string' && typeof city.big === 'boolean';

for (const [name, provider] of Object.entries(providers)) {
  const asked = { model: provider, prompt, maxOutputTokens: 60 };

  const { text } = await generateText(asked);
  assert.ok(text, `${name}: a text`);

  let streamed = '';
  const stream = streamText({ ...asked, onError: ({ error }) => assert.fail(error) });
  for await (const part of stream.textStream) streamed += part;
  assert.ok(streamed, `${name}: a stream`);
  assert.ok(['stop', 'length'].includes(await stream.finishReason), `${name}: an end`);

  const tools = { city: tool({ description: 'A city.', inputSchema: schema }) };
  const { toolCalls } = await generateText({ ...asked, tools, toolChoice: 'required' });
  assert.deepEqual(toolCalls.map((call) => [call.toolName, isCity(call.input)]), [['city', true]], `${name}: a call`);

  const { object } = await generateObject({ ...asked, schema });
  assert.ok(isCity(object), `${name}: an object`);
  console.log(`the AI SDK's ${name}: ok`);
}
