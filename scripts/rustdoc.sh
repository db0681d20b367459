#!/usr/bin/env bash
# Stands in for rustdoc (RUSTDOC=scripts/rustdoc.sh cargo test --doc). Where cargo runs the examples of a library, this first
# makes its pages, with warnings denied, and then runs them. So the pages need no second build of all dependencies, as
# `cargo doc` does, which wants them checked instead of compiled.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
rustdoc=$(rustc --print sysroot)/bin/rustdoc

case " $* " in
  *" --test "*) ;;
  *) exec "$rustdoc" "$@" ;;
esac

# The same arguments without those of tests, which rustdoc refuses beside pages.
pages=()
skip=
for argument; do
  if [ -n "$skip" ]; then
    skip=
    continue
  fi
  case $argument in
    --test | --no-capture | --nocapture) ;;
    --test-args | --test-run-directory | --test-runtool | --test-runtool-arg) skip=1 ;;
    --test-args=* | --test-run-directory=*) ;;
    *) pages+=("$argument") ;;
  esac
done
"$rustdoc" "${pages[@]}" --document-private-items -D warnings --out-dir "${CARGO_TARGET_DIR:-$root/target}/doc-of-tests"
exec "$rustdoc" "$@"
