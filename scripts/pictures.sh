#!/usr/bin/env bash
# Makes the pictures of the terminal in docs/images: a real chat in which the node is killed in the middle of an answer, and
# what the commands about sessions and faults then show. Needs tmux, and the programs in BATON_BIN or built now.
#
#   scripts/pictures.sh
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
command -v tmux >/dev/null 2>&1 || fail "tmux is missing: install it, then run this again"
need_programs
bin=$(cd "$bin" && pwd)
export LC_ALL=C.UTF-8
unset TMUX NO_COLOR BATON_LOG BATON_PLAIN BATON_HOME BATON_CONFIG BATON_NODE
work=$(mktemp -d)
columns=92 rows=30
mux() { tmux -u -L "baton-pictures-$$" -f /dev/null "$@"; }
network=
finish() {
  mux kill-server 2>/dev/null || true
  [ -z "$network" ] || { kill "$network" 2>/dev/null && wait "$network" 2>/dev/null; } || true
  rm -rf "$work"
}
trap finish EXIT
screen() { mux capture-pane -p -t t; }
see() {
  local until=$((SECONDS + ${2:-60}))
  until grep -qE -- "$1" <<<"$(screen)"; do
    [ "$SECONDS" -lt "$until" ] || { screen >&2; fail "this was not seen: $1"; }
    sleep 0.05
  done
}
say() {
  mux send-keys -t t -l "$1"
  mux send-keys -t t Enter
}

# Its answers are worth reading.
model=qwen2.5-coder-1.5b-instruct
"$bin/baton-node" models pull "$model"
"$bin/baton-testnet" up --nodes 3 --model "$model" >"$work/network" 2>"$work/network.err" &
network=$!
until grep -qs 'Ctrl-C stops' "$work/network"; do
  kill -0 "$network" 2>/dev/null || fail "the network did not start: $(tail -n 3 "$work/network.err")"
  sleep 0.2
done
config=$(sed -n 's/.*export BATON_CONFIG=//p' "$work/network")
mux new-session -d -x "$columns" -y "$rows" -s t "'$bin/baton' --config '$config' chat --temperature 0 --seed 1 --max-tokens 160"
see '· 3 nodes'
mux send-keys -t t C-b
say 'What is a relay race?'
see '✓ verified · turn 1' 240
say 'Who runs the last leg, and why?'
see '─ . node [0-9a-f]{8} ·'
node=$(screen | sed -n 's/.*─ . node \([0-9a-f]\{8\}\) ·.*/\1/p' | head -n 1)
before=$(screen | wc -w)
until [ "$(screen | wc -w)" -gt $((before + 20)) ]; do sleep 0.02; done
kill -9 "$(sed -n "s/^node  $node.*(process \([0-9]*\),.*/\1/p" "$work/network")"
see '✓ verified · turn 2' 240
see 'continues the answer'
sleep 1
picture() {
  mux capture-pane -e -p -t t | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' -e "s|$(dirname "$config")|~/network|g" | python3 scripts/screen_svg.py "$columns" >"docs/images/$1.svg"
  echo "docs/images/$1.svg: $(wc -c <"docs/images/$1.svg") bytes"
}
picture takeover

# Commands, as a person types them.
mux kill-server
mux new-session -d -x "$columns" -y "$rows" -s t "env BATON_CONFIG='$config' PATH='$bin:$PATH' PS1='$ ' sh"
see '\$ *$'
say clear
sleep 1
say 'baton doctor'
see 'clock'
sleep 3
picture doctor
