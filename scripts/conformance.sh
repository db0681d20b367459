#!/usr/bin/env bash
# Compares this project with Walrus's own and other people's code: our blob IDs with Mysten's WebAssembly encoder on
# seeded random inputs, and our store with PyPI's walrus-python, which stores and reads through it unmodified.
#
#   scripts/conformance.sh [--count 200] [--seed N]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

count=200
seed=$((RANDOM * 32768 + RANDOM))
while [ $# -gt 0 ]; do
  case $1 in
    --count) count=$2 && shift 2 ;;
    --seed) seed=$2 && shift 2 ;;
    *) fail "unknown argument $1: known are --count and --seed" ;;
  esac
done

need_tools
need_python
need_modules scripts/conformance ci
need_programs
node scripts/conformance/ids.mjs --count "$count" --seed "$seed" --ours "$bin/examples/blob_ids"

work=$(mktemp -d)
"$bin/baton-testnet" store --listen 127.0.0.1:0 --data-dir "$work/store" --json >"$work/ready" &
store=$!
trap 'kill "$store" 2>/dev/null || true; wait "$store" 2>/dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 100); do
  [ -s "$work/ready" ] && break
  kill -0 "$store" 2>/dev/null || fail "the store ended before it was ready"
  sleep 0.1
done
url=$(sed -n 's/.*"url":"\([^"]*\)".*/\1/p' "$work/ready")
[ -n "$url" ] || fail "the store was not ready within 10 s"
"$venv/bin/python" scripts/conformance/walrus_python.py "$url"
