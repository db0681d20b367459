#!/usr/bin/env bash
# Drives the published memwal client, and the published client and inspector of the Model Context Protocol, unmodified,
# against a relayer that was built (F10).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
need_python
if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "skipped: memwal 0.2.1 needs Python 3.11, and $venv has $("$venv/bin/python" --version)"
  exit 0
fi
if ! "$venv/bin/python" -c 'import httpx, mcp, memwal' >/dev/null 2>&1; then
  pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
  "${pip[@]}" -r scripts/memwal/requirements.txt
  # Without its own list: see requirements.txt.
  "${pip[@]}" --no-deps -r scripts/memwal/memwal.txt
fi
need_modules scripts/memwal ci
need_programs
"$venv/bin/python" scripts/memwal/test_memwal.py "$bin"
"$venv/bin/python" scripts/memwal/test_agent.py "$bin"
