#!/usr/bin/env bash
# Fuzzes the decoders of what strangers send, guided by coverage, on the stable toolchain. The folders are cargo-fuzz's,
# so `cargo fuzz run TARGET` works in their parents as well (with nightly it adds the address sanitizer).
#
#   scripts/fuzz.sh [--seconds 10] [TARGET ...]     all targets, so long each
#
# A crash ends it with the input's file in the folder's `artifacts`.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

seconds=10
targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2 && shift 2 ;;
    -*) fail "unknown argument $1: known are --seconds and names of targets" ;;
    *) targets+=("$1") && shift ;;
  esac
done
need_tools

folders=(walrus-client/fuzz node/engine/fuzz)

# The folder that has a target.
folder_of() {
  local folder
  for folder in "${folders[@]}"; do
    [ -f "$folder/fuzz_targets/$1.rs" ] && echo "$folder" && return
  done
  fail "there is no fuzz target $1: the targets are in ${folders[*]/%//fuzz_targets}"
}

if [ ${#targets[@]} -eq 0 ]; then
  for folder in "${folders[@]}"; do
    for file in "$folder"/fuzz_targets/*.rs; do
      targets+=("$(basename "$file" .rs)")
    done
  done
fi

# What cargo-fuzz passes without a sanitizer: libFuzzer's coverage instrumentation, in every crate.
flags=(
  -Cpasses=sancov-module
  -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares
  --cfg fuzzing
)
host=$(rustc -vV | sed -n 's/^host: //p')
built=${CARGO_TARGET_DIR:-target}/fuzz
for target in "${targets[@]}"; do
  folder=$(folder_of "$target")
  RUSTFLAGS="${flags[*]}" cargo build --locked --release --manifest-path "$folder/Cargo.toml" \
    --target "$host" --target-dir "$built" --bin "$target"
  program=$built/$host/release/$target
  mkdir -p "$folder/corpus/$target" "$folder/artifacts/$target"
  printf 'fuzzing %s for %s s\n' "$target" "$seconds"
  log=$(mktemp)
  # What libFuzzer tells is shown when it finds something; else its last lines.
  if ! "$program" "$folder/corpus/$target" "$folder/seeds/$target" -max_total_time="$seconds" -timeout=10 \
    -rss_limit_mb=2048 -artifact_prefix="$folder/artifacts/$target/" >"$log" 2>&1; then
    cat "$log"
    fail "$target failed: run it again with the file named above"
  fi
  grep -E '^(stat::number_of_executed_units|Done )' "$log" || tail -n 1 "$log"
  rm -f "$log"
done
