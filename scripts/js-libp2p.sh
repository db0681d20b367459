#!/usr/bin/env bash
# Has js-libp2p, another implementation, connect to a node, identify it and ping it, over TCP and over QUIC.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
need_node
bin=${BATON_BIN:-${CARGO_TARGET_DIR:-target}/debug}
# The whole workspace: a part of it would build its dependencies anew, with other features.
[ -n "${BATON_BIN:-}" ] || cargo build --quiet --locked --workspace --all-targets
(cd scripts/js-libp2p && npm ci --silent --no-audit --no-fund)
node scripts/js-libp2p/test_peer.mjs --bin "$bin"
