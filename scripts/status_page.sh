#!/usr/bin/env bash
# Opens the status page of a node in Chromium while the node serves turns, and looks whether its figures and plots move, by
# mouse, by keyboard, and in words.
#
#   scripts/status_page.sh [--screenshots FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
need_node
chromium=$(command -v chromium || command -v chromium-browser || true)
if [ -z "$chromium" ]; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "skipped: there is no Chromium here, and it cannot be installed by this user"
    exit 0
  fi
  install_packages chromium
  chromium=$(command -v chromium)
fi
bin=${BATON_BIN:-${CARGO_TARGET_DIR:-target}/debug}
# The whole workspace: a part of it would build its dependencies anew, with other features.
[ -n "${BATON_BIN:-}" ] || cargo build --quiet --locked --workspace --all-targets
(cd scripts/page && npm ci --silent --no-audit --no-fund)
node scripts/page/test_status.mjs --bin "$bin" --chromium "$chromium" "$@"
