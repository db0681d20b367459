#!/usr/bin/env bash
# Tests the Python client: its types and unit tests, then a conversation of 20 turns (50 with --full) over three nodes, one of
# which is killed in the middle of an answer. Both verifiers check the result, and the Rust client continues it.
#
#   scripts/python_client.sh [--full] [--model-dir FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
need_python
# The package as its users get it: built, and installed without its sources. Its own environment shows that its list of
# dependencies is whole.
client=${PYTHON_CLIENT_VENV:-$root/.venv/python-client}
if ! "$client/bin/python" -c 'import mypy, blake3, mnemonic, nacl' >/dev/null 2>&1; then
  python3 -m venv --clear "$client"
  "$client/bin/python" -m pip install --quiet --disable-pip-version-check "./client/python[dev]"
fi
need_programs
"$client/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall ./client/python
(cd client/python && "$client/bin/ruff" check . && "$client/bin/mypy")
(cd client/python && "$client/bin/python" -m unittest discover --start-directory tests --top-level-directory .)
"$client/bin/python" scripts/python_client/fifty_turns.py "$bin" "$@"
