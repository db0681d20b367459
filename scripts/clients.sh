#!/usr/bin/env bash
# Drives libraries over the APIs' clients, unmodified, against baton serve and two nodes with the real model. Their packages
# have some hundred megabytes.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
need_python
clients=$venv-clients
if ! "$clients/bin/python" -c 'import agents, instructor, langchain_ollama, litellm, pydantic_ai' >/dev/null 2>&1; then
  python3 -m venv --clear "$clients"
  "$clients/bin/python" -m pip install --quiet --disable-pip-version-check -r scripts/openai/clients.txt
fi
# Aider pins versions of its own, and newer Pythons are none of its own.
aider=$venv-aider
if python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))'; then
  if ! "$aider/bin/aider" --version >/dev/null 2>&1; then
    python3 -m venv --clear "$aider"
    "$aider/bin/python" -m pip install --quiet --disable-pip-version-check -r scripts/openai/aider.txt
  fi
  export AIDER=$aider/bin/aider
else
  echo "Aider is not tested: it needs Python 3.10 to 3.12" >&2
fi
need_programs
need_modules scripts/ai-sdk ci
for model in smollm2-135m-instruct qwen2.5-coder-1.5b-instruct; do
  "$bin/baton-node" models pull "$model"
done
"$clients/bin/python" scripts/openai/test_clients.py "$bin"
