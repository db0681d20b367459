#!/usr/bin/env bash
# Drives the published Python clients of OpenAI, Anthropic and Ollama, unmodified, against baton serve and a network of
# three nodes.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
need_python
if ! "$venv/bin/python" -c 'import anthropic, ollama, openai' >/dev/null 2>&1; then
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r scripts/openai/requirements.txt
fi
need_programs
"$venv/bin/python" scripts/openai/test_openai.py "$bin"
"$venv/bin/python" scripts/openai/test_tools.py "$bin"
"$venv/bin/python" scripts/openai/test_other_apis.py "$bin"
