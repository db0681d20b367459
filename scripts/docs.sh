#!/usr/bin/env bash
# Runs the commands of README.md and docs/*.md as a reader would, on private networks of this machine
# (scripts/docs_commands.py has the rules).
#
#   scripts/docs.sh                          every document
#   scripts/docs.sh docs/GUIDE.md            only this one
#   scripts/docs.sh --keep-going             also the blocks after a failed one
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
need_python
need_programs
# The documents have homes of their own; the model is fetched once, into the folder of this user.
export BATON_NODE_MODEL_DIR=${BATON_NODE_MODEL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/baton/models}
"$bin/baton-node" models pull smollm2-135m-instruct >/dev/null
exec "$venv/bin/python" scripts/docs_commands.py --bin "$bin" "$@"
