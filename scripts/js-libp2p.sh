#!/usr/bin/env bash
# Has js-libp2p, another implementation, connect to a node, identify it and ping it, over TCP, WebSocket and QUIC.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
need_node
if [ "$(node -p 'process.versions.node.split(".")[0]')" -lt 20 ]; then
  echo "skipped: js-libp2p needs Node.js 20 or newer"
  exit 0
fi
# Without a lock file: npm does not lock the QUIC module for machines other than its own.
need_modules scripts/js-libp2p install --no-package-lock
need_programs
node scripts/js-libp2p/test_peer.mjs --bin "$bin"
