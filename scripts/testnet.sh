#!/usr/bin/env bash
# Installs what is needed, builds, fetches the model, and runs the demo: a conversation that moves between nodes on
# this machine, attacked and repaired on the way. Arguments go to `baton-testnet demo`; `--up` keeps a network running
# instead (see `baton-testnet up --help`).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
need_tools

command=demo
if [ "${1:-}" = --up ]; then
  command=up
  shift
fi

echo "building (some minutes the first time)" >&2
cargo build --release --locked --bins
bin=${CARGO_TARGET_DIR:-target}/release
"$bin/baton-node" models pull smollm2-135m-instruct
exec "$bin/baton-testnet" "$command" "$@"
