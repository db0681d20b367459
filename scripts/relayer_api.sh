#!/usr/bin/env bash
# Holds a relayer to its OpenAPI document, with a tester that makes requests from it (schemathesis) and a generated client.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
need_python
readers=$venv-relayer-api
if ! "$readers/bin/python" -c 'import nacl, openapi_python_client, schemathesis' >/dev/null 2>&1; then
  python3 -m venv --clear "$readers"
  "$readers/bin/python" -m pip install --quiet --disable-pip-version-check -r scripts/relayer_api/requirements.txt
fi
need_programs
"$readers/bin/python" scripts/relayer_api/test_relayer_api.py "$bin"
