#!/usr/bin/env bash
# Tests a release: packages the programs twice, in two folders, by two users and on two days, and compares the bytes; checks
# the list of packages and the .deb; installs it, removes it, and shows every refusal of the installer; and asks for an answer
# in a bare system.
#
#   scripts/test_release.sh                  with the programs of BATON_BIN, or of target/debug
#   scripts/test_release.sh --full           builds the programs twice instead, as releases (about an hour on two cores)
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

full=
case ${1:-} in
  --full) full=1 ;;
  '') ;;
  *) fail "unknown argument $1: only --full is known" ;;
esac
need_tools
need_python
need_minisign
if [ -n "${BATON_PREPARE:-}" ]; then
  command -v faketime >/dev/null || [ "$(id -u)" != 0 ] || (install_packages faketime) || true
  exec scripts/bare_root.sh
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
key=$work/key/baton.key
epoch=$(git log -1 --format=%ct)
if [ -n "$full" ]; then
  source_of_programs=()
  limit=4h
else
  need_programs
  # Unoptimised programs are large; how much they are compressed changes nothing that is tested here.
  source_of_programs=(--bin "$(cd "$bin" && pwd)" --level 1)
  limit=15m
fi

make_key() {
  mkdir -p "$work/key"
  minisign -G -W -p "$work/key/baton.pub" -s "$key" >/dev/null
}

# copy_tree FOLDER: the repository's files without their history; all have the time of now.
copy_tree() {
  mkdir -p "$1"
  git ls-files -z | xargs -0 cp --parents -t "$1"
  ln -s "$venv" "$1/.venv"
}

package_here() {
  copy_tree "$work/here"
  (
    umask 022
    export TZ=UTC SOURCE_DATE_EPOCH=$epoch
    unset CARGO_TARGET_DIR
    timeout "$limit" "$work/here/scripts/release.sh" --key "$key" --out "$work/first" "${source_of_programs[@]}" >"$work/first.log"
  ) || fail "release.sh failed: $(tail -n 20 "$work/first.log")"
}

# Another folder, home, user, time zone, language, umask and day; in a full test another cargo home and compiler's folder too.
package_elsewhere() {
  local home=$work/elsewhere/home tree=$work/elsewhere/a/longer/path tools=$work/elsewhere/tools wrapper=() toolchain
  # The compiler itself, not rustup's stand-in.
  toolchain=$(rustc --print sysroot)
  copy_tree "$tree"
  mkdir -p "$home/.cargo"
  find "$tree" -type f -exec touch --date='2001-02-03 04:05:06' {} +
  if [ -n "$full" ]; then
    # Links to its files where that is possible, since it has a gigabyte.
    cp -al "$toolchain" "$work/elsewhere/rust" || cp -a "$toolchain" "$work/elsewhere/rust"
    toolchain=$work/elsewhere/rust
    mkdir "$home/.cargo/registry"
    cp -R "${CARGO_HOME:-$HOME/.cargo}"/registry/{cache,index} "$home/.cargo/registry/"
  else
    ln -s "${CARGO_HOME:-$HOME/.cargo}/registry" "$home/.cargo/registry"
  fi
  if unshare --user --map-user=12345 --map-group=12345 true 2>/dev/null; then
    wrapper+=(unshare --user --map-user=12345 --map-group=12345)
  else
    echo "not varied: the user, since this machine allows no namespaces"
  fi
  if ! command -v faketime >/dev/null && [ "$(id -u)" = 0 ]; then
    (install_packages faketime) || true
  fi
  if command -v faketime >/dev/null; then
    wrapper+=(faketime -f +400d)
    # The compiler's allocator and faketime wait for each other; build scripts and C compilers do see that day.
    mkdir "$tools"
    printf '#!/bin/sh\nexec env -u LD_PRELOAD "%s" "$@"\n' "$toolchain/bin/rustc" >"$tools/rustc"
    chmod 755 "$tools/rustc"
  else
    echo "not varied: the clock, since faketime is not installed"
  fi
  (
    umask 077
    unset CARGO_TARGET_DIR
    timeout "$limit" "${wrapper[@]}" env HOME="$home" CARGO_HOME="$home/.cargo" PATH="$tools:$toolchain/bin:$PATH" \
      CARGO_NET_OFFLINE=true TZ=Pacific/Auckland LC_ALL=C.UTF-8 SOURCE_DATE_EPOCH="$epoch" \
      "$tree/scripts/release.sh" --key "$key" --out "$work/second" "${source_of_programs[@]}" >"$work/second.log"
  ) || fail "release.sh failed elsewhere: $(tail -n 20 "$work/second.log")"
}

compare() {
  local one two
  if ! cmp -s "$work/first/SHA256SUMS" "$work/second/SHA256SUMS"; then
    for one in first second; do
      mkdir "$work/$one/files"
      tar -xzf "$work/$one"/*.tar.gz -C "$work/$one/files"
    done
    two=$(diff -rq "$work/first/files" "$work/second/files" || true)
    fail "two releases of one commit differ: ${two:-in the .deb or the installer}"
  fi
  echo "two releases of one commit are the same:"
  cat "$work/first/SHA256SUMS"
}

check_deb() {
  local deb scratch=$work/scratch
  deb=$(echo "$work"/first/*.deb)
  dpkg-deb --info "$deb" | grep -E '^ (Package|Version|Architecture|Depends|Recommends|Installed-Size):'
  [ "$(dpkg-deb --ctrl-tarfile "$deb" | tar -t | sort | xargs)" = "./ ./control ./md5sums" ] || fail "$deb has scripts"
  [ -z "$(dpkg-deb --contents "$deb" | awk '$2 != "root/root" || $1 !~ /^(-rw-r--r--|-rwxr-xr-x|drwxr-xr-x)$/')" ] ||
    fail "$deb has files of another owner or mode: $(dpkg-deb --contents "$deb")"
  mkdir -p "$scratch"
  if [ "$(id -u)" = 0 ]; then
    mkdir -p "$scratch"/var/lib/dpkg/{info,updates}
    touch "$scratch/var/lib/dpkg/status"
    dpkg --root="$scratch" --force-depends --install "$deb" >/dev/null 2>"$work/dpkg.log" || fail "$(cat "$work/dpkg.log")"
  else
    dpkg-deb --extract "$deb" "$scratch"
  fi
  check_units "$scratch"
  (cd "$scratch" && md5sum --quiet --check <(dpkg-deb --ctrl-tarfile "$deb" | tar -xO ./md5sums)) || fail "md5sums is wrong"
  "$scratch/usr/bin/baton" --version
  echo "$(basename "$deb"): no scripts, root's files, units with their programs"
}

# The units below a root: each starts a program that is there, and names only variables that its help names.
check_units() {
  local unit program command help variable user
  mkdir -p "$work/units" "$work/run"
  for unit in "$1"/usr/lib/systemd/*/baton-*.service; do
    read -r program command < <(sed -n 's/^ExecStart=//p' "$unit")
    [ -x "$1$program" ] || fail "$(basename "$unit") starts $program, which the package lacks"
    help=$("$1$program" "$command" --help)
    for variable in $(grep -o 'BATON_[A-Z_]*' "$unit" | sort -u); do
      grep -q "env: $variable=" <<<"$help" || fail "$(basename "$unit") names $variable, which $program $command does not know"
    done
    command -v systemd-analyze >/dev/null || continue
    user=$(basename "$(dirname "$unit")")
    sed "s|^ExecStart=|&$1|" "$unit" >"$work/units/$(basename "$unit")"
    XDG_RUNTIME_DIR=$work/run systemd-analyze verify "--$user" --man=no "$work/units/$(basename "$unit")" ||
      fail "systemd refuses $(basename "$unit")"
  done
}

# The whole release, with the real programs; scripts/test_install.sh has the other cases.
check_installation() {
  local prefix=$work/prefix program shell
  shell=$(command -v dash || command -v sh)
  "$shell" "$work/first/install.sh" "$work/first" --prefix "$prefix" >"$work/install.log" 2>&1 || fail "$(cat "$work/install.log")"
  for program in baton baton-node baton-relayer baton-testnet; do
    "$prefix/bin/$program" --version
    [ -s "$prefix/share/man/man1/$program.1" ] || fail "there is no manual page of $program"
  done
  bash -n "$prefix/share/bash-completion/completions/baton"
  "$shell" "$prefix/lib/baton/install.sh" --remove --prefix "$prefix"
  [ ! -e "$prefix" ] || fail "--remove left $(find "$prefix")"
}

make_key
package_here
package_elsewhere
compare
"$venv/bin/python" scripts/sbom.py check "$work"/first/*.cdx.json
check_deb
check_installation
scripts/test_install.sh
scripts/bare_root.sh "$work/first"
