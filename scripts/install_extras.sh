#!/usr/bin/env bash
# Installs completions (bash, zsh, fish) and manual pages of the commands that are on the path, for this user.
#
#   scripts/install_extras.sh [--prefix FOLDER]          default: ~/.local; /usr/local is for everybody
set -euo pipefail

prefix=$HOME/.local
case ${1:-} in
  --prefix) prefix=${2:?--prefix needs a folder} ;;
  '') ;;
  *) echo "error: unknown argument $1: only --prefix FOLDER is known" >&2; exit 2 ;;
esac

share=$prefix/share
mkdir -p "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d" "$share/man/man1"
installed=0
for command in baton baton-node baton-relayer baton-testnet; do
  command -v "$command" >/dev/null 2>&1 || continue
  "$command" completions bash >"$share/bash-completion/completions/$command"
  "$command" completions zsh >"$share/zsh/site-functions/_$command"
  "$command" completions fish >"$share/fish/vendor_completions.d/$command.fish"
  "$command" man --out "$share/man/man1"
  echo "$command: completions and manual pages are in $share"
  installed=$((installed + 1))
done
if [ "$installed" = 0 ]; then
  echo "error: none of baton, baton-node, baton-relayer and baton-testnet is on the path: install them first (README.md)" >&2
  exit 1
fi
echo "bash and fish find them by themselves; for zsh put this before compinit: fpath+=($share/zsh/site-functions)"
