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
need_programs
need_modules scripts/ai-sdk ci
for model in smollm2-135m-instruct qwen2.5-coder-1.5b-instruct; do
  "$bin/baton-node" models pull "$model"
done
"$clients/bin/python" scripts/openai/test_clients.py "$bin"
