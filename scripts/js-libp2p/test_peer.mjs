// A js-libp2p peer connects to a Baton node, learns who it is, and pings it: over TCP and
// WebSocket with Noise and Yamux, and over QUIC.
//
//   node test_peer.mjs --bin FOLDER
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'
import { noise } from '@chainsafe/libp2p-noise'
import { quic } from '@chainsafe/libp2p-quic'
import { yamux } from '@chainsafe/libp2p-yamux'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { webSockets } from '@libp2p/websockets'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

// What js-libp2p takes for granted and Node.js has from version 22 on.
Promise.withResolvers ??= function () {
  let settle
  const promise = new Promise((resolve, reject) => { settle = { resolve, reject } })
  return { promise, ...settle }
}

const { values } = parseArgs({ options: { bin: { type: 'string' } } })
const folder = await mkdtemp(join(tmpdir(), 'baton-js-'))
const listen = ['/ip4/127.0.0.1/tcp/0', '/ip4/127.0.0.1/tcp/0/ws', '/ip4/127.0.0.1/udp/0/quic-v1']
const args = ['run', '--json', '--engine', 'echo', '--data-dir', folder, '--mdns', 'false', '--admin', 'none']
const node = spawn(join(values.bin, 'baton-node'), [...args, ...listen.flatMap((address) => ['--listen', address])])
let log = ''
node.stderr.on('data', (text) => { log += text })

function ready () {
  return new Promise((resolve, reject) => {
    node.once('exit', (code) => reject(new Error(`baton-node ended with ${code}: ${log}`)))
    createInterface({ input: node.stdout }).on('line', (line) => {
      const event = JSON.parse(line)
      if (event.event === 'ready') resolve(event)
    })
  })
}

async function meet (name, transport, address, peerId) {
  const peer = await createLibp2p({
    transports: [transport()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    services: { identify: identify(), ping: ping() }
  })
  try {
    const identified = new Promise((resolve) => peer.addEventListener('peer:identify', (event) => resolve(event.detail)))
    const connection = await peer.dial(multiaddr(address), { signal: AbortSignal.timeout(20000) })
    assert.equal(connection.remotePeer.toString(), peerId, 'the node proves the identity that its address names')
    const who = await identified
    assert.match(who.agentVersion, /^baton-node\//)
    assert.ok(who.protocols.includes('/baton/turn/2'), 'it says that it serves turns')
    assert.ok(who.protocols.includes('/baton/kad/1'), 'and that it is in the DHT')
    const took = await peer.services.ping.ping(connection.remotePeer, { signal: AbortSignal.timeout(20000) })
    assert.ok(took >= 0 && took < 5000)
    console.log(`ok ${name}: connected, identified as ${who.agentVersion}, pinged in ${took} ms`)
  } finally {
    await peer.stop()
  }
}

/** The node writes its journal while it drains: its folder can go when the process has ended, not before. */
async function stop () {
  if (node.exitCode !== null || node.signalCode !== null) return
  const ended = new Promise((resolve) => node.once('exit', resolve))
  node.kill()
  await ended
}

try {
  const { listen: addresses, peer_id: peerId } = await ready()
  const find = (pattern) => addresses.find((address) => pattern.test(address))
  await meet('TCP, Noise, Yamux', tcp, find(/\/tcp\/\d+\/p2p/), peerId)
  await meet('WebSocket, Noise, Yamux', webSockets, find(/\/ws/), peerId)
  await meet('QUIC', quic, find(/\/quic-v1/), peerId)
} finally {
  await stop()
  await rm(folder, { recursive: true, force: true })
}
process.exit(0)
