#!/usr/bin/env bash
# Opens the status page of a node in Chromium while the node serves turns, and looks whether its figures and plots move, by
# mouse, by keyboard, and in words.
#
#   scripts/status_page.sh [--screenshots FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
need_modules scripts/page ci
need_chromium
need_programs
node scripts/page/test_status.mjs --bin "$bin" --chromium "$chromium" "$@"
