#!/usr/bin/env bash
# Uses the full-screen view of baton chat as a person would: in a terminal (tmux), with keys, looking at the screen. The nodes
# run the test engine, which repeats the message.
#
#   scripts/tui.sh
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
if ! command -v tmux >/dev/null 2>&1; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "skipped: there is no tmux here, and it cannot be installed by this user"
    exit 0
  fi
  install_packages tmux
fi
need_programs
bin=$(cd "$bin" && pwd)

export LC_ALL=C.UTF-8
unset TMUX NO_COLOR BATON_LOG BATON_PLAIN BATON_HOME BATON_CONFIG BATON_NODE
work=$(mktemp -d)
mux() { tmux -u -L "baton-tui-$$" -f /dev/null "$@"; }
network=
finish() {
  mux kill-server 2>/dev/null || true
  [ -z "$network" ] || { kill "$network" 2>/dev/null && wait "$network" 2>/dev/null; } || true
  rm -rf "$work"
}
trap finish EXIT

screen() { mux capture-pane -p -t t; }
keys() { mux send-keys -t t "$@"; }
# Waits until what stands on the screen matches; the second argument is for how many seconds, 20 if none.
see() {
  local until=$((SECONDS + ${2:-20}))
  until grep -qE -- "$1" <<<"$(screen)"; do
    if [ "$SECONDS" -ge "$until" ]; then
      screen >&2
      fail "this was not seen: $1"
    fi
    sleep 0.1
  done
}
# Waits until it does not match any more.
unseen() {
  local until=$((SECONDS + 10))
  while grep -qE -- "$1" <<<"$(screen)"; do
    if [ "$SECONDS" -ge "$until" ]; then
      screen >&2
      fail "this should not be seen: $1"
    fi
    sleep 0.1
  done
}
# A terminal of this size, with a shell in it that goes on when the program ends.
terminal() {
  mux kill-server 2>/dev/null || true
  mux new-session -d -x "$1" -y "$2" -s t "PS1='shell> ' sh"
  see 'shell>'
}
run() {
  keys -l "$1"
  keys Enter
}
chat="$bin/baton --home $work/home --config \$CONFIG chat --allow-echo"
# The terminal is as it was: no alternate screen, no mouse, no bracketed paste, and lines with an echo.
restored() {
  see 'shell> *$'
  local modes
  modes=$(mux display-message -p -t t '#{alternate_on}#{mouse_any_flag}#{cursor_flag}')
  [ "$modes" = 001 ] || fail "the terminal was not given back: $modes"
  run 'stty -a | tr -d "\n" | sed "s/.* \(-*icanon\) .* \(-*echo\) .*/<\1 \2>/"'
  see '<icanon echo>'
}

"$bin/baton-testnet" up --nodes 3 --engine echo --echo-delay-ms 50 >"$work/network" 2>"$work/network.err" &
network=$!
until grep -qs 'Ctrl-C stops' "$work/network"; do
  kill -0 "$network" 2>/dev/null || fail "the network did not start: $(tail -n 3 "$work/network.err")"
  sleep 0.2
done
CONFIG=$(sed -n 's/.*export BATON_CONFIG=//p' "$work/network")
chat=${chat//\$CONFIG/$CONFIG}
long=$(printf 'word %.0s' $(seq 100))

echo "it opens, and answers while one types"
terminal 100 30
run "$chat"
see '· 3 nodes'
run "Tell me of 日本語, $long"
see 'Esc stops it'
see 'echo: Tell me of 日本語,'
keys -l 'typed meanwhile'
see '› typed meanwhile'
see '✓ verified · turn 1 · node [0-9a-f]{8} · [0-9]+ tokens · echo · [0-9]+/s'
see '✓ 1 turn verified'
see '• Tell me of 日'
unseen 'Esc stops it'
keys C-c
unseen 'typed meanwhile'

echo "lines begin anew, and what is pasted is not sent"
keys -l 'one'
keys M-Enter
keys -l 'two'
mux set-buffer "$(printf 'three\nfour \033]0;owned\007')"
mux paste-buffer -p -t t
see '^ *│? *four \]0;owned'
keys Enter
see '✓ verified · turn 2'
see 'echo: one twothree four'

echo "Escape stops an answer, which stays and can be changed"
run "never mind, $long"
see 'echo: never mind,'
keys Escape
see 'Stopped: this is not part of the conversation'
unseen 'No answer'
run '/continue'
see '✓ verified · turn 3'
run "never mind that, $long"
see 'echo: never mind that,'
keys Escape
unseen 'Esc stops it'
# Alone, it puts the stopped message into the line, where it can be changed.
run '/edit'
see '› /edit never mind that,'
keys C-c
unseen '› /edit'
keys -l '/edti x'
keys Enter
see 'Did you mean /edit'
keys C-c
run '/edit changed'
see 'echo: changed'
see '✓ verified · turn 4'

echo "another node goes on when one is killed"
run "go on, $long $long"
see 'echo: go on,'
node=$(screen | sed -n 's/.*─ . node \([0-9a-f]\{8\}\) ·.*/\1/p')
victim=$(sed -n "s/^node  $node.*(process \([0-9]*\),.*/\1/p" "$work/network")
[ -n "$victim" ] || fail "the screen names no node of the network: $node"
kill -9 "$victim"
see "node $node stopped answering" 30
see 'continues the answer' 30
until_ended=$((SECONDS + 10))
until grep -q "node $node.* has ended; 2 of" "$work/network.err"; do
  [ "$SECONDS" -lt "$until_ended" ] || fail "the network did not say that a node ended"
  sleep 0.2
done
see '✓ verified · turn 5' 60

echo "help, and the list of sessions"
keys F1
see '/regenerate'
keys Tab
see 'n new · r name'
keys n
see 'session [0-9a-f]{8} · /help'
keys Tab Enter
see 'echo: go on,'

echo "a title is asked for in a box, and goes to no node"
keys -l '/ren'
see '/rename TITLE'
keys Tab
see '^.*› /rename *$'
# The opened conversation is compared with its head first; until then the command stays in the line.
for _ in {1..60}; do
  keys Enter
  sleep 0.5
  ! grep -q '┌─ title' <<<"$(screen)" || break
done
see '┌─ title'
keys C-u
keys -l 'My harbour'
keys Enter
unseen '┌─ title'
see '• My harbour'
unseen '› My harbour'
keys Tab
keys -l d
see 'Delete "My harbour"'
keys Escape
unseen 'Delete "My harbour"'
keys Escape
echo "commands are completed, and act"
run '/params temperature=0'
see 'temperature=0 max_tokens=auto'
run '/model'
see 'served: echo'
keys -l '/'
see '/sessions +list'
keys Escape
unseen '/sessions +list'
keys C-u
keys -l '/par'
see '/params \[..\]'
keys Enter
see '› Message, or / for commands'

echo "other sizes"
mux resize-window -t t -x 60 -y 20
see '^› Message, or / for commands'
unseen '│'
mux resize-window -t t -x 20 -y 5
see '^[0-9a-f]{8}$'
keys -l 'small'
see '^› small'
mux resize-window -t t -x 200 -y 50
see 'Enter send · / commands'
mux resize-window -t t -x 132 -y 43
see 'Conversations · Tab'
mux resize-window -t t -x 100 -y 30
see 'Conversations · Tab'
keys C-u

echo "the journal's escape sequences stay text"
keys C-d
see 'Continue with:'
restored
title=$(mux display-message -p -t t '#{pane_title}')
printf 'nice \033]0;owned\007\033[2J\302\233text' |
  "$bin/baton" --home "$work/home" --config "$CONFIG" chat --allow-echo - >/dev/null 2>&1
run "clear; $chat last"
see '› nice \]0;owned\[2Jtext'
see '  echo: nice'
# While the conversation opens, a message stays in the line.
unseen 'Esc stops it'
[ "$(mux display-message -p -t t '#{pane_title}')" = "$title" ] || fail "an answer set the terminal's title"

echo "a signal gives the terminal back, and keeps the message"
run "be quick, $long"
see 'echo: be quick,'
kill -TERM "$(pgrep -f "^$bin/baton --home $work/home" | head -n 1)"
see 'is sent again first'
restored
run "clear; $chat last"
see 'An earlier message has no answer yet'
see '✓ verified · turn 2'
keys C-d
restored

echo "line by line where that is asked for"
run "clear; $chat --plain last"
see '^> *$'
unseen 'F1 help'
run '/quit'
restored
run "clear; echo /quit | $chat last"
see 'session [0-9a-f]{8} · 2 turns · /help'
restored

if [ -z "${BATON_BIN:-}" ]; then
  echo "a panic gives the terminal back before its message"
  tests=$(cargo test --quiet --locked --workspace --lib --no-run --message-format=json |
    sed -n 's/.*"name":"baton_cli","src_path".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
  run "clear; $tests --ignored --nocapture a_panic_gives_the_terminal_back"
  see 'on purpose'
  see 'test result: ok. 1 passed'
  restored
fi
echo "the full-screen view: all as it should be"
