#!/usr/bin/env bash
# Installs what is needed, builds, fetches the model, and runs the demo: a conversation that moves between nodes on
# this machine, attacked and fixed on the way. Arguments go to `baton-testnet demo`; `--up` keeps a network running
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

# Only the programs that run, without their heavy options, in a profile that compiles fast: a release takes twice as long.
packages=(-p baton-node -p baton-relayer -p baton-testnet)
[ "$command" = demo ] || packages+=(-p baton-cli)
echo "building (some minutes the first time)" >&2
cargo build --profile quick --locked --no-default-features "${packages[@]}" --bins
bin=${CARGO_TARGET_DIR:-target}/quick
"$bin/baton-node" models pull smollm2-135m-instruct
exec "$bin/baton-testnet" "$command" "$@"
