#!/usr/bin/env bash
# Installs what building and testing needs, where it is missing: a C toolchain (for TLS and QUIC), a Python
# environment for the independent verifier and other people's Walrus client, and Node.js for Mysten's encoder. Sourced by the other scripts; runs by itself too.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
# What the tests and the scripts run. The whole workspace: a part of it would build its dependencies anew, with other features.
# Of the examples, which take minutes to link, one is run.
test_targets=(--workspace --bins --tests --example blob_ids)

# Programs of tests meet those that the tests start, and no node of another network on this machine.
export BATON_MDNS=false BATON_NODE_MDNS=false BATON_RELAYER_MDNS=false

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 1
}

need_tools() {
  command -v cargo >/dev/null 2>&1 || {
    # rustup installs here; a shell that was open before does not have it on its path yet.
    [ -x "$HOME/.cargo/bin/cargo" ] && PATH=$HOME/.cargo/bin:$PATH
  }
  command -v cargo >/dev/null 2>&1 || fail "cargo is missing: install Rust 1.95 or newer with rustup, then run this again"
  command -v python3 >/dev/null 2>&1 || fail "python3 is missing: install Python 3.9 or newer with pip, then run this again"
  local missing=()
  command -v cc >/dev/null 2>&1 || missing+=(build-essential)
  command -v make >/dev/null 2>&1 || missing+=(make)
  # The fuzzer's own code is C++.
  command -v c++ >/dev/null 2>&1 || missing+=(g++)
  install_packages "${missing[@]}"
}

# Scripts that run at a time install one after the other, since apt serves one alone.
install_packages() {
  [ $# -gt 0 ] || return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    (
      flock 9
      apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
    ) 9>"${TMPDIR:-/tmp}/baton-apt.lock"
  else
    fail "$* is missing: install it with your system's package manager, then run this again"
  fi
}

# Node.js, in which Mysten's WebAssembly encoder runs.
need_node() {
  local missing=()
  command -v node >/dev/null 2>&1 || missing+=(nodejs)
  command -v npm >/dev/null 2>&1 || missing+=(npm)
  install_packages "${missing[@]}"
}

# Chromium, for the tests of pages; where there is none and it cannot be installed, they are skipped. Sets `chromium`.
need_chromium() {
  chromium=$(command -v chromium || command -v chromium-browser || true)
  [ -z "$chromium" ] || return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "skipped: there is no Chromium here, and it cannot be installed by this user"
    exit 0
  fi
  install_packages chromium fonts-liberation
  chromium=$(command -v chromium)
}

# A Firefox. Sets `firefox`; empty where there is none and it cannot be installed.
want_firefox() {
  firefox=$(command -v firefox-esr || command -v firefox || true)
  [ -z "$firefox" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 0
  if install_packages firefox-esr; then firefox=$(command -v firefox-esr); fi
}

# need_modules FOLDER COMMAND: a folder's packages of Node.js, by npm's COMMAND.
need_modules() {
  local folder=$1 ready=$1/node_modules/.ready
  shift
  need_node
  [ "$ready" -nt "$folder/package.json" ] && return
  (cd "$folder" && npm "$@" --silent --no-audit --no-fund)
  touch "$ready"
}

# The programs: those in BATON_BIN, or built now unless BATON_BUILT says that they are. Sets `bin`. A script that is called to
# prepare alone (BATON_PREPARE) has installed what it needs at this point, and ends.
need_programs() {
  [ -z "${BATON_PREPARE:-}" ] || exit 0
  bin=${BATON_BIN:-${CARGO_TARGET_DIR:-target}/debug}
  # The whole workspace: a part of it would build its dependencies anew, with other features.
  [ -n "${BATON_BIN:-}${BATON_BUILT:-}" ] || cargo build --locked "${test_targets[@]}"
}

# The packages of scripts/requirements.txt, in an environment of their own.
need_python() {
  if [ ! -x "$venv/bin/just" ] || ! "$venv/bin/python" -c 'import blake3, cyclonedx, nacl, walrus' >/dev/null 2>&1; then
    # Debian has venv apart from Python, and without it leaves half an environment behind.
    if ! python3 -m venv --clear "$venv" >/dev/null 2>&1; then
      install_packages python3-venv
      python3 -m venv --clear "$venv" || fail "python3 -m venv failed: install your system's python3-venv package, then run this again"
    fi
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$root/scripts/requirements.txt"
  fi
}

# minisign, which signs releases.
need_minisign() {
  command -v minisign >/dev/null 2>&1 || install_packages minisign
}

# The runner of recipes (justfile), from its Python package where the machine has none. Sets `just`.
need_just() {
  just=$(command -v just || true)
  [ -z "$just" ] || return 0
  need_python
  just=$venv/bin/just
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  need_tools
  need_python
  echo "ready: cargo $(cargo --version | cut -d' ' -f2), $("$venv/bin/python" --version)"
fi
