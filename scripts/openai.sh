#!/usr/bin/env bash
# Drives OpenAI's published Python client, unmodified, against baton serve and a network of three nodes.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
need_python
if ! "$venv/bin/python" -c 'import openai' >/dev/null 2>&1; then
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r scripts/openai/requirements.txt
fi
need_programs
"$venv/bin/python" scripts/openai/test_openai.py "$bin"
"$venv/bin/python" scripts/openai/test_tools.py "$bin"
