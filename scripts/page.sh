#!/usr/bin/env bash
# Opens the chat page of baton serve in Chromium and uses it as a person would: by mouse, by keyboard, and by what a screen
# reader is told.
#
#   scripts/page.sh [--screenshots FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_tools
need_modules scripts/page ci
need_chromium
need_programs
node scripts/page/test_page.mjs --bin "$bin" --chromium "$chromium" "$@"
