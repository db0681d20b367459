#!/usr/bin/env bash
# Runs every test, and ends with a table of where the time went:
# - unit, property and process tests, with the real model and a Postgres;
# - the demo, also with a store that fails, and the independent verifier on its export;
# - the comparison with Mysten's encoder; a Walrus client, a memory client and OpenAI's client, as published; our Python client;
# - both pages in a browser, the full-screen view in a terminal, completions and manual pages, certificates by ACME;
# - a release: its bytes, its installer with all refusals, and a verified answer in a bare system;
# - the commands of README.md and docs/*.md, as a reader would run them.
# Long matrices run as seeded samples, and the checks of the fuzz targets on their seeds with random changes. `--full` runs
# the matrices whole, builds a release twice, fuzzes each target guided by coverage, checks the programs without their
# options, drives libraries over the gateway's APIs, holds a relayer to its OpenAPI document, uses the browser client in
# browsers, and floods a release build. `--lint` denies clippy's warnings and the documentation's in the builds of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

full=
lint=
for argument in "$@"; do
  case $argument in
    --full) full=1 ;;
    --lint) lint=1 ;;
    *) fail "unknown argument $argument: --full and --lint are known" ;;
  esac
done
[ -n "$full" ] && export BATON_FULL=1

# Clippy is a compiler too: as the compiler of our crates it lints and builds in one pass. `cargo clippy` and `cargo doc`
# beside a build check hundreds of dependencies that the build has compiled: eight minutes on two cores.
if [ -n "$lint" ]; then
  RUSTC_WORKSPACE_WRAPPER=$(rustc --print sysroot)/bin/clippy-driver
  # The form in which `cargo clippy -- -D warnings` hands its arguments on.
  export RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS="-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"
  export RUSTDOC=$root/scripts/rustdoc.sh
fi

bin=${CARGO_TARGET_DIR:-target}/debug
work=$(mktemp -d)
sides=()
finish() {
  local side
  for side in "${sides[@]}"; do
    kill -- "-${side%%:*}" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap finish EXIT

step() {
  local name=$1 start=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  "$@"
  printf '%-34s %8d\n' "$name" $((SECONDS - start)) >>"$work/times"
}

demo() {
  "$bin/baton-testnet" demo --json --keep "$work/demo" | tail -n 1 >"$work/report.json"
  cat "$work/report.json"
}

demo_with_faults() {
  local engine=echo
  [ -n "$full" ] && engine=native
  "$bin/baton-testnet" demo --json --faults store --engine "$engine" | tail -n 1
}

verify_vectors() {
  "$venv/bin/python" scripts/verify_export.py --vectors proto/vectors
  (cd scripts && "$venv/bin/python" -m unittest -q test_verify_export test_size)
}

tests() {
  scripts/postgres.sh run -- scripts/run_tests.py --locked "${test_targets[@]}"
}

# How long turns take under a flood says something in a release build alone, on a machine that does nothing else.
flood() {
  cargo build --locked --release -p baton-testnet -p baton-node --bins
  sync
  "$(dirname "$bin")/release/baton-testnet" flood --seconds 90 --json | tail -n 1
}

# Runs a lane beside others. Its log is shown when it ended.
lane() {
  set -m
  ("$1") >"$work/$1.log" 2>&1 &
  sides+=("$!:$1")
  set +m
}

wait_for_lanes() {
  local side ended
  for side in "${sides[@]}"; do
    ended=0
    wait "${side%%:*}" || ended=$?
    cat "$work/${side##*:}.log"
    [ "$ended" = 0 ] || fail "the steps above failed"
  done
  sides=()
}

# What the scripts below use of others: clients, browsers, bare systems. A build needs the processor, and this the network.
packages() {
  local script
  scripts/postgres.sh fetch
  for script in memwal js-libp2p python_client conformance openai page tui nat acme test_release; do
    BATON_PREPARE=1 "scripts/$script.sh"
  done
}

prepare() {
  step "packages, beside the build" packages
}

step "install what is missing" need_tools
step "python for the verifier" need_python
lane prepare
step "fetch the model" "$bin/baton-node" models pull smollm2-135m-instruct
wait_for_lanes
step "verifier on the vectors" verify_vectors

# The other steps are programs that wait for browsers, terminals and timers most of the time, so three of them run at a time.
# The scripts do not build again: cargo would wait for the lane that compiles.
export BATON_BUILT=1
networks() {
  step "the memwal client" scripts/memwal.sh
  step "js-libp2p" scripts/js-libp2p.sh
  step "demo on the real model" demo
  step "demo on a store that fails" demo_with_faults
  step "verifier on the demo's export" "$venv/bin/python" scripts/verify_export.py "$work/demo/export.json"
  step "the Python client" scripts/python_client.sh ${full:+--full}
  step "conformance with Walrus" scripts/conformance.sh
  step "completions and manual pages" scripts/test_extras.sh
  step "the trial run of the benchmark" scripts/test_bench_engine.sh
  step "commands of the documents" scripts/docs.sh
}

screens() {
  step "clients of the gateway's APIs" scripts/openai.sh
  step "the chat page in Chromium" scripts/page.sh
  step "the status page in Chromium" scripts/status_page.sh
  step "the full-screen view in tmux" scripts/tui.sh
  step "behind routers" scripts/nat.sh
  step "certificates by ACME" scripts/acme.sh
}

compiler() {
  # They are built to be linted, as the benchmarks of the measurements are.
  [ -z "$lint" ] || step "examples and benchmarks" nice cargo build --locked --workspace --examples --benches
  step "examples of the libraries" nice cargo test --locked --workspace --doc
  step "a release, and its installer" scripts/test_release.sh ${full:+--full}
}

lane networks
lane compiler
screens
wait_for_lanes
if [ -n "$full" ]; then
  need_just
  step "libraries over the APIs" scripts/clients.sh
  step "the relayer's OpenAPI document" scripts/relayer_api.sh
  step "the browser client" scripts/browser.sh
  step "programs without their options" "$just" lint-plain
  step "fuzz targets" scripts/fuzz.sh --seconds 60
  step "flood, in a release build" flood
fi

printf '\n%-34s %8s\n' "where the time went" seconds
cat "$work/times"
printf '%-34s %8d\n' total "$SECONDS"
