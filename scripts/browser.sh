#!/usr/bin/env bash
# Builds the browser client, the package @baton/client, and the chat page over it, and uses both in Chromium, the package in
# Firefox too: a key, three nodes of which one is killed, a check of all turns, and the session again from its 24 words.
#
#   scripts/browser.sh [--package FOLDER] [--page FOLDER] [--no-test] [--screenshots FOLDER]
#
# The folders are target/browser and target/browser-page by default. The compiler for WebAssembly is this machine's, where it has the target
# wasm32-unknown-unknown; otherwise that of a Debian system in a folder, which root makes with debootstrap in
# ~/.cache/baton-test. Without either this is skipped, and says why.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

package=${CARGO_TARGET_DIR:-$root/target}/browser
page=${CARGO_TARGET_DIR:-$root/target}/browser-page
test=1
screenshots=()
while [ $# -gt 0 ]; do
  case $1 in
    --package) package=$(realpath -m "${2:?--package needs a folder}") && shift ;;
    --page) page=$(realpath -m "${2:?--page needs a folder}") && shift ;;
    --no-test) test='' ;;
    --screenshots) screenshots=(--screenshots "$(realpath -m "${2:?--screenshots needs a folder}")") && shift ;;
    *) fail "unknown argument $1: --package, --page, --no-test and --screenshots are known" ;;
  esac
  shift
done

wasm=wasm32-unknown-unknown
cache=${XDG_CACHE_HOME:-$HOME/.cache}/baton-test
system=$cache/sid-$wasm
build=${CARGO_TARGET_DIR:-$root/target}/wasm
# The bytes of getrandom 0.3 come from the browser by this flag alone.
flags='--cfg getrandom_backend="wasm_js"'

skip() {
  echo "skipped: the browser client: $1"
  exit 0
}

has_target() {
  [ -d "$(rustc --print sysroot)/lib/rustlib/$wasm" ]
}

# Debian's unstable release has the standard library for WebAssembly as a package.
make_system() {
  [ ! -d "$system" ] || return 0
  [ "$(id -u)" = 0 ] || skip "the compiler has no target $wasm (rustup target add $wasm), and only root can make a system that has"
  unshare --mount --pid --fork true 2>/dev/null || skip "this machine allows no mounts"
  [ -e /usr/share/debootstrap/scripts/sid ] || install_packages debootstrap
  [ -e /usr/share/debootstrap/scripts/sid ] || skip "there is no debootstrap"
  rm -rf --one-file-system "$system.new"
  mkdir -p "$cache"
  timeout 900 debootstrap --variant=minbase --include=ca-certificates,cargo,gcc,libc6-dev,libstd-rust-dev-wasm32,lld,rustc \
    sid "$system.new" >"$cache/debootstrap.log" 2>&1 || skip "debootstrap failed: $(tail -n 1 "$cache/debootstrap.log")"
  rm -rf "$system.new"/var/cache/apt/archives/*.deb
  mv "$system.new" "$system"
}

# cargo_wasm ARGUMENTS: runs cargo for WebAssembly. In the system it finds this tree and cargo's packages at their own places.
cargo_wasm() {
  if has_target; then
    RUSTFLAGS=$flags cargo "$@" --target "$wasm" --target-dir "$build"
    return
  fi
  local cargo_home=${CARGO_HOME:-$HOME/.cargo}
  mkdir -p "$build" "$cargo_home/registry"
  unshare --mount --pid --fork --kill-child bash -c '
    set -e
    system=$1 flags=$2
    shift 2
    for folder in "$1" "$2" "$3"; do
      mkdir -p "$system$folder"
      mount --bind "$folder" "$system$folder"
    done
    mount -t proc proc "$system/proc"
    tree=$1 home=$2 build=$3
    shift 3
    exec chroot "$system" env -i PATH=/usr/bin:/bin HOME=/root CARGO_HOME="$home" RUSTFLAGS="$flags" CARGO_NET_OFFLINE=true \
      CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld sh -c "cd \"\$0\" && exec cargo \"\$@\"" "$tree" "$@"' \
    bash "$system" "$flags" "$root" "$cargo_home" "$build" "$@" --target "$wasm" --target-dir "$build"
}

# The generator of the bindings, of the version that the code was compiled with. Sets `bindgen`.
need_bindgen() {
  local version
  version=$(sed -n '/^name = "wasm-bindgen"$/{n;s/version = "\(.*\)"/\1/p}' Cargo.lock)
  bindgen=$cache/wasm-bindgen-$version/bin/wasm-bindgen
  [ -x "$bindgen" ] || cargo install --locked --root "$cache/wasm-bindgen-$version" wasm-bindgen-cli --version "$version"
}

make_package() {
  cargo fetch --quiet --locked
  cargo_wasm build --locked --profile web -p baton-browser
  rm -rf "$package"
  "$bindgen" --target web --out-dir "$package" "$build/$wasm/web/baton_browser.wasm"
  cp client/browser/package.json client/browser/README.md "$package"
  echo "$package: $(du -k "$package/baton_browser_bg.wasm" | cut -f1) KiB, $(gzip -9 -c "$package/baton_browser_bg.wasm" | wc -c | awk '{ print int($1 / 1024) }') compressed"
}

# The chat page of `baton serve` with the client in it: files for any web server.
make_page() {
  rm -rf "$page"
  mkdir -p "$page/baton"
  cp -r client/gateway/src/page/. "$page"
  cp "$package"/baton_browser.js "$package"/baton_browser_bg.wasm "$page/baton"
}

need_tools
has_target || make_system
if [ -n "$test" ]; then
  need_modules scripts/browser ci
  need_modules scripts/page ci
  need_chromium
  want_firefox
  need_python
  need_programs
fi
need_bindgen
make_package
make_page
[ -n "$test" ] || exit 0
for name in chromium firefox; do
  [ -n "${!name}" ] || { echo "skipped: the browser client in Firefox, which is not here" && continue; }
  for transport in webrtc websocket; do
    printf '\n== %s, %s\n' "$name" "$transport"
    BATON_VERIFIER="$venv/bin/python scripts/verify_export.py" node scripts/browser/test_browser.mjs --bin "$bin" \
      --package "$package" --browser "$name" --executable "${!name}" --over "$transport"
  done
done
"$bin/baton-node" models pull smollm2-135m-instruct
node scripts/browser/test_page.mjs --bin "$bin" --page "$page" --chromium "$chromium" "${screenshots[@]}"
