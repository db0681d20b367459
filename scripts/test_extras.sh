#!/usr/bin/env bash
# Installs completions and manual pages of all four commands into a temporary folder, as install_extras.sh does for a user, and
# checks that every command is in them, that shells read the one and groff the other.
#
#   scripts/test_extras.sh
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

bin=${BATON_BIN:-${CARGO_TARGET_DIR:-target}/debug}
bin=$(cd "$bin" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH=$bin:$PATH scripts/install_extras.sh --prefix "$work" >"$work/said"
share=$work/share

# The commands that a help text lists, one a line.
listed() {
  "$@" --help | sed -n '/^Commands:/,/^$/p' | awk '/^  [a-z]/ { print $1 }' | grep -vx help
}

check_completion() {
  local whole=$1 below=$2 name=$3
  grep -q -- "$below" "$share/bash-completion/completions/$whole" || fail "$name: $below is not completed in bash"
  grep -q -- "$below" "$share/zsh/site-functions/_$whole" || fail "$name: $below is not completed in zsh"
  grep -q -- "$below" "$share/fish/vendor_completions.d/$whole.fish" || fail "$name: $below is not completed in fish"
}

pages=0
check() {
  local page=$share/man/man1/$1.1 name=$1 whole below
  shift
  whole=$(basename "$1")
  [ -s "$page" ] || fail "there is no manual page of $*"
  for below in $(listed "$@" || true); do
    check_completion "$whole" "$below" "$name"
    check "$name-$below" "$@" "$below"
  done
  pages=$((pages + 1))
  if command -v groff >/dev/null 2>&1; then
    groff -man -Tutf8 -P-cbou -ww "$page" >"$work/rendered" 2>"$work/complaints" || fail "groff cannot read $page"
    [ ! -s "$work/complaints" ] || fail "$page: $(head -n 3 "$work/complaints")"
    grep -q NAME "$work/rendered" || fail "$page renders to nothing"
  fi
}

for command in baton baton-node baton-relayer baton-testnet; do
  [ -x "$bin/$command" ] || fail "$bin/$command is missing: cargo build --workspace"
  check "$command" "$bin/$command"
  bash -n "$share/bash-completion/completions/$command"
  # What bash offers after the command's name is what the help lists.
  offered=$(PATH=$bin:$PATH bash -c 'source "$1"; function=$(complete -p "$2" | sed "s/.*-F \([^ ]*\) .*/\1/"); COMP_WORDS=("$2" ""); COMP_CWORD=1; COMP_TYPE=9
    "$function" "$2" "" "$2"; printf "%s\n" "${COMPREPLY[@]}"' bash "$share/bash-completion/completions/$command" "$command")
  for word in $(listed "$bin/$command"); do
    grep -qx -- "$word" <<<"$offered" || fail "bash does not offer $command $word"
  done
done
echo "$pages manual pages, and completions for bash, zsh and fish: every command is in them"
