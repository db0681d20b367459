// Compares our blob IDs, and their cost, with Mysten's own WebAssembly encoder.
//
//   node ids.mjs --count 200 --seed 1 --ours target/release/examples/blob_ids
//       IDs of seeded random inputs; one line of summary, and exit status 1 on any difference.
//   node ids.mjs --bench --ours target/release/examples/bench_ids [--runs 5]
//       JSON with the times of both, measured one after the other.
//
// Before: npm ci --prefix scripts/conformance

import { spawnSync } from "node:child_process";
import { parseArgs } from "node:util";
import { BlobEncoder } from "@mysten/walrus-wasm";

const MAX_LENGTH = 2 * 1024 * 1024;
/** How many of the cases have a thousand shards, which costs the WebAssembly a second each. */
const AT_A_THOUSAND = 12;

const { values: options } = parseArgs({
  options: {
    count: { type: "string", default: "200" },
    seed: { type: "string", default: "1" },
    ours: { type: "string" },
    bench: { type: "boolean", default: false },
    runs: { type: "string", default: "5" },
  },
});
if (!options.ours) {
  console.error("--ours PATH is needed: the example binary blob_ids, or bench_ids with --bench");
  process.exit(2);
}

/** The generator that both sides share (mulberry32): a function that gives 32-bit numbers. */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return (mixed ^ (mixed >>> 14)) >>> 0;
  };
}

/** The blob of a seed: the generator's numbers, little-endian. */
function blob(seed, length) {
  const next = generator(seed);
  const words = new Uint32Array(Math.ceil(length / 4));
  for (let at = 0; at < words.length; at += 1) words[at] = next();
  if (new Uint8Array(new Uint32Array([1]).buffer)[0] !== 1) throw new Error("needs a little-endian machine");
  return new Uint8Array(words.buffer, 0, length);
}

/** Symbols of the source matrix: a blob of as many bytes times an even number fills it. */
function sourceSymbols(shards) {
  const faulty = Math.floor((shards - 1) / 3);
  return (shards - 2 * faulty) * (shards - faulty);
}

/** Random cases: mostly few shards, and lengths mostly at the steps of the symbol size. */
function cases(count, seed) {
  const next = generator(seed);
  const below = (limit) => next() % limit;
  return Array.from({ length: count }, (_, number) => {
    let shards;
    if (number < AT_A_THOUSAND) shards = 1000;
    else if (below(10) < 7) shards = 4 + below(60);
    else if (below(10) < 8) shards = 64 + below(236);
    else shards = 300 + below(700);
    let length;
    const kind = below(10);
    if (kind < 5) {
      const step = 2 * sourceSymbols(shards);
      const steps = Math.max(1, Math.floor(MAX_LENGTH / step));
      length = step * (1 + below(steps)) + below(5) - 2;
    } else if (kind < 7) {
      length = below(2000);
    } else {
      length = Math.floor(2 ** ((below(1_000_000) / 1_000_000) * Math.log2(MAX_LENGTH)));
    }
    return { seed: next(), length: Math.min(MAX_LENGTH, Math.max(0, length)), shards };
  });
}

function theirId(encoder, bytes) {
  try {
    return Buffer.from(encoder.compute_metadata(bytes)[0]).toString("base64url");
  } catch (error) {
    if (String(error).includes("too large")) return "too large";
    throw error;
  }
}

function runOurs(args, input) {
  const done = spawnSync(options.ours, args, { input, encoding: "utf8", maxBuffer: 1 << 26 });
  if (done.error || done.status !== 0) {
    console.error(`${options.ours} failed: ${done.error ?? done.stderr}`);
    process.exit(2);
  }
  return done.stdout;
}

function compare() {
  const all = cases(Number(options.count), Number(options.seed));
  const input = all.map(({ seed, length, shards }) => `${seed} ${length} ${shards}\n`).join("");
  const ours = runOurs([], input).trim().split("\n");
  let different = 0;
  let refused = 0;
  all.forEach(({ seed, length, shards }, number) => {
    const encoder = new BlobEncoder(shards);
    const theirs = theirId(encoder, blob(seed, length));
    encoder.free();
    if (theirs === "too large") refused += 1;
    if (theirs === ours[number]) return;
    different += 1;
    console.error(`seed ${seed}, ${length} bytes, ${shards} shards: ours ${ours[number]}, theirs ${theirs}`);
  });
  const same = all.length - different;
  const verdict = different === 0 && ours.length === all.length ? "ok" : "FAILED";
  console.log(
    `blob IDs ${verdict}: ${same} of ${all.length} as @mysten/walrus-wasm (${refused} of them refused by both), seed ${options.seed}`,
  );
  if (verdict !== "ok") process.exit(1);
}

function median(values) {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
}

/** The same sizes and shard counts as ours, measured the same way. */
function measure() {
  const report = JSON.parse(runOurs(["--runs", options.runs], ""));
  report.walrus_wasm = report.ids.map(({ bytes, shards, id }) => {
    const encoder = new BlobEncoder(shards);
    const data = blob(bytes, bytes);
    if (theirId(encoder, data) !== id) throw new Error(`other IDs for ${bytes} bytes at ${shards} shards`);
    const wall = [];
    const cpu = [];
    for (let run = 0; run < Number(options.runs); run += 1) {
      const [before, start] = [process.cpuUsage(), performance.now()];
      encoder.compute_metadata(data);
      wall.push(performance.now() - start);
      const { user, system } = process.cpuUsage(before);
      cpu.push((user + system) / 1000);
    }
    encoder.free();
    const round = (value) => Math.round(value * 1000) / 1000;
    return { bytes, shards, cpu_ms: round(median(cpu)), wall_ms: round(median(wall)) };
  });
  console.log(JSON.stringify(report, null, 1));
}

if (options.bench) measure();
else compare();
