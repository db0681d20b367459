#!/usr/bin/env bash
# Tests when scripts/bench-engine.sh builds llama.cpp without AMX, with a build and a trial run that only say how they would end.
#
#   scripts/test_bench_engine.sh
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/bench_engine/usable.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The exit code of a trial run, by what the program in its place does.
code_of() {
  printf '%s\n' "$1" >"$work/llama.py"
  PYTHONPATH=scripts/bench_engine python3 -c "
import pathlib, compare
raise SystemExit(compare.check(pathlib.Path('model'), pathlib.Path('$work/llama.py')))" || echo $?
}
segfault='import os, signal; os.kill(os.getpid(), signal.SIGSEGV)'
[ "$(code_of "$segfault")" = "$crashed" ] || fail "a trial run that a signal ends is no crash"
[ "$(code_of 'raise SystemExit(1)')" = 1 ] || fail "a trial run that fails is not code 1"
[ -z "$(code_of 'pass')" ] || fail "a trial run that succeeds is not code 0"

# Builds and trial runs of make_usable, where the trial runs end with these codes, and whether it succeeded.
outcome() {
  local amx=$1 codes=$2
  : >"$work/said"
  (
    has_amx() { [ "$amx" = amx ]; }
    build_llama() { echo "build ${CMAKE_ARGS:-}" >>"$work/said"; }
    try_llama() {
      echo try >>"$work/said"
      local code=${codes%% *}
      codes=${codes#* }
      return "$code"
    }
    make_usable
  ) 2>/dev/null && echo usable >>"$work/said"
  paste -sd ' ' "$work/said"
}
check() {
  local expected=$1 said
  said=$(outcome "$2" "$3")
  [ "$said" = "$expected" ] || fail "with $2 and trial runs that end with $3: $said, not: $expected"
}
unset CMAKE_ARGS
flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
build="build -DCMAKE_C_FLAGS='$flags' -DCMAKE_CXX_FLAGS='$flags'"
check "try usable" amx 0
check "try $build try usable" amx "3 0"
check "try $build try" amx "3 3"
check "try" amx 1
check "try" "no amx" 3
export CMAKE_ARGS=-DGGML_AVX512=OFF
check "try" amx 3
echo "the benchmark's trial run: all cases pass"
