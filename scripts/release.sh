#!/usr/bin/env bash
# Makes a release: the four programs with completions, manual pages, systemd units, licences and a list of all packages in
# them, as a .tar.gz and a .deb, with signed checksums and an installer that has the key.
#
#   scripts/release.sh --key FILE.key [--out FOLDER] [--target TRIPLE]     builds the programs for this machine, or for TRIPLE
#   scripts/release.sh --key FILE.key --bin FOLDER                         packages programs that are already built
#   scripts/release.sh --unsigned ...                                      for tests: no signature, no key in the installer
#   scripts/release.sh --level 1 ...                                       for tests: compresses less, in a third of the time
#
# FOLDER is dist by default. A second call with another target adds to it, and signs again.
#
# A build is reproducible: one commit, compiler, C compiler and set of system packages give the same bytes in every folder,
# for every user, on every day. SOURCE_DATE_EPOCH is the time of all files (default: that of the last commit).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
export LC_ALL=C TZ=UTC CARGO_INCREMENTAL=0
# A release is the compiler's work alone; tests may have set others in its place.
unset RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS RUSTDOC
umask 022

programs=(baton baton-node baton-relayer baton-testnet)

read_arguments() {
  out=dist key='' unsigned='' bin='' target='' level=6
  while [ $# -gt 0 ]; do
    case $1 in
      --out) out=${2:?--out needs a folder} && shift ;;
      --key) key=${2:?--key needs the file of a secret key} && shift ;;
      --unsigned) unsigned=1 ;;
      --bin) bin=${2:?--bin needs a folder} && shift ;;
      --level) level=${2:?--level needs a number from 1 to 9} && shift ;;
      --target) target=${2:?--target needs a triple} && shift ;;
      *) fail "unknown argument $1: the first lines of scripts/release.sh list all" ;;
    esac
    shift
  done
}

check_key() {
  [ -z "$unsigned" ] || return 0
  [ -n "$key" ] || fail "a release needs a key: make one with minisign -G -p baton.pub -s baton.key, keep baton.key outside
the repository, and pass --key baton.key (or --unsigned, for tests)"
  public=${key%.key}.pub
  [ -r "$key" ] || fail "$key cannot be read: name the secret key that minisign -G made"
  [ -r "$public" ] || fail "$public is missing: put the public key beside the secret one (minisign -R -s $key -p $public)"
  need_minisign
}

# Sets `target`, the names of the machine in file names, and the prefix of the tools for it.
check_target() {
  local host
  host=$(rustc -vV | sed -n 's/^host: //p')
  target=${target:-$host} tools=''
  case $target in
    x86_64-unknown-linux-gnu) machine=x86_64 debian=amd64 ;;
    aarch64-unknown-linux-gnu) machine=aarch64 debian=arm64 ;;
    *) fail "no release is made for $target: name x86_64-unknown-linux-gnu or aarch64-unknown-linux-gnu" ;;
  esac
  [ "$target" != "$host" ] || return 0
  [ -z "$bin" ] || fail "--bin takes programs of this machine, which print their own manual pages: leave --target out"
  tools=$machine-linux-gnu-
  if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
    echo "skipped: the compiler has no library for $target (rustup target add $target)"
    exit 0
  fi
  if ! command -v "${tools}gcc" >/dev/null || ! command -v "${tools}g++" >/dev/null; then
    echo "skipped: there is no C and C++ compiler for $target (Debian: gcc-${machine/_/-}-linux-gnu, g++-${machine/_/-}-linux-gnu)"
    exit 0
  fi
}

# Sets the folders that a compiler would write into programs, each with its replacement.
find_paths() {
  local cargo_home=${CARGO_HOME:-$HOME/.cargo} sysroot commit folder
  sysroot=$(rustc --print sysroot)
  commit=$(rustc -vV | sed -n 's/^commit-hash: //p')
  # Where several match, the last one counts.
  paths=("$PWD=/baton" "$build=/baton/target")
  # One for each registry: a mirror has a folder of its own, with the same packages.
  for folder in "$cargo_home"/registry/src/*/; do
    paths+=("${folder%/}=/cargo")
  done
  paths+=("$sysroot=/rust" "$sysroot/lib/rustlib/src/rust=/rustc/$commit")
  # Compilers split their flags at spaces.
  for folder in "${paths[@]}"; do
    [[ $folder != *[[:space:]]* ]] || fail "${folder%=*} has a space in its name: build in another folder"
  done
}

# Builds the programs for this machine and for the target. Sets `bin`, and `host_bin` for the manual pages.
build_programs() {
  local flags=() c_flags=() path
  git diff --quiet HEAD 2>/dev/null || [ ! -e .git ] || fail "files differ from the last commit: commit them, then run this again"
  build=$(realpath -m "${CARGO_TARGET_DIR:-target}/dist")
  cargo fetch --quiet --locked
  find_paths
  for path in "${paths[@]}"; do
    flags+=("--remap-path-prefix=$path")
    c_flags+=("-ffile-prefix-map=$path")
  done
  # These take the place of flags in the environment and in the user's configuration.
  CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && printf %s "${flags[*]}")
  export CARGO_ENCODED_RUSTFLAGS CFLAGS="${c_flags[*]}" CXXFLAGS="${c_flags[*]}"
  unset "${!CARGO_PROFILE_@}"
  host_bin=$build/release
  bin=$host_bin
  if [ -n "$tools" ]; then
    cargo_build
    bin=$build/$target/release
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=${tools}gcc
  fi
  # jemalloc fixes the size of pages when it is built; 64 KiB serve all kernels for this machine.
  [ "$machine" != aarch64 ] || export JEMALLOC_SYS_WITH_LG_PAGE=16
  cargo_build ${tools:+--target "$target"}
}

cargo_build() {
  cargo build --release --locked --target-dir "$build" --bins \
    -p baton-cli -p baton-node -p baton-relayer -p baton-testnet "$@"
}

# Lays out the folder of the archive as it will be below the prefix of an installation.
stage_files() {
  local folder=$1 program
  mkdir -p "$folder/bin" "$folder/lib/systemd/system" "$folder/share/systemd/user" "$folder/share/doc/baton"
  for program in "${programs[@]}"; do
    [ -x "$bin/$program" ] || fail "$bin/$program is missing: build it first, or leave --bin out"
    "${tools}strip" -o "$folder/bin/$program" "$bin/$program"
  done
  # Without the environment: the pages would quote the values of its variables.
  env -i PATH="$host_bin:/usr/bin:/bin" HOME=/ bash scripts/install_extras.sh --prefix "$folder" >/dev/null
  cp scripts/deploy/baton-node.service scripts/deploy/baton-relayer.service "$folder/lib/systemd/system"
  cp scripts/deploy/baton-serve.service "$folder/share/systemd/user"
  cp README.md LICENSE-APACHE LICENSE-MIT "$folder/share/doc/baton"
  "$venv/bin/python" scripts/sbom.py write --target "$target" \
    --sbom "$folder/share/doc/baton/sbom.cdx.json" --licences "$folder/share/doc/baton/THIRD-PARTY-LICENCES"
  mkdir "$folder/lib/baton"
  install -m 755 scripts/install.sh "$folder/lib/baton/install.sh"
}

# One archive for one tree of files: no order, times, owners or modes of this machine are in it.
make_tarball() {
  tar --create --directory "$work" --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" \
    --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' "$name" | gzip -n "-$level" >"$out/$name.tar.gz"
  cp "$work/$name/share/doc/baton/sbom.cdx.json" "$out/$name.cdx.json"
}

# The Debian packages of the libraries that the programs in a folder load.
needed_libraries() {
  local glibc
  if [ -z "$tools" ] && command -v dpkg-shlibdeps >/dev/null 2>&1; then
    mkdir -p "$work/shlibs/debian"
    printf 'Source: baton\n\nPackage: baton\nArchitecture: any\n' >"$work/shlibs/debian/control"
    (cd "$work/shlibs" && dpkg-shlibdeps -O "${programs[@]/#/$1/}") | sed -n 's/^shlibs:Depends=//p'
    return
  fi
  glibc=$("${tools}readelf" --version-info --wide "${programs[@]/#/$1/}" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
  echo "libc6 (>= ${glibc#GLIBC_}), libgcc-s1"
}

make_deb() {
  local root=$work/deb docs=$work/deb/usr/share/doc/baton
  mkdir -p "$root/DEBIAN"
  cp -R "$work/$name" "$root/usr"
  rm -r "$root/usr/lib/baton"
  mv "$root/usr/share/systemd/user" "$root/usr/lib/systemd/user"
  mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
  rmdir "$root/usr/share/systemd"
  sed -i 's|/usr/local/bin/|/usr/bin/|g' "$root"/usr/lib/systemd/*/*.service
  gzip -n9 "$root"/usr/share/man/man1/*.1
  { cat LICENSE-MIT && printf '\nor, at your choice:\n\n' && cat LICENSE-APACHE; } >"$docs/copyright"
  rm "$docs"/LICENSE-*
  # Certificates: the programs make no HTTP client without them. pip: `baton-node models pull` asks it for its package index.
  cat >"$root/DEBIAN/control" <<EOF
Package: baton
Version: $debian_version
Architecture: $debian
Maintainer: The Baton contributors
Installed-Size: $(find "$root/usr" -type f -printf '%s\n' | awk '{ total += int(($1 + 1023) / 1024) } END { print total }')
Depends: $(needed_libraries "$root/usr/bin"), ca-certificates
Recommends: python3-pip
Section: net
Priority: optional
Description: Chat with open language models over a peer-to-peer network
 Independent operators run the models. Conversations are encrypted on your
 device, stored on Walrus, and can continue on another node after every turn.
EOF
  (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  chmod -R u=rwX,go=rX "$root"
  find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
  # gzip, since the output of xz depends on the number of processors.
  dpkg-deb --root-owner-group -Zgzip "-z$level" --build "$root" "$out/baton_${debian_version}_$debian.deb" >/dev/null
}

# Writes the installer and the checksums of all files of this version, and signs them.
sign_release() {
  cp scripts/install.sh "$out/install.sh"
  rm -f "$out/SHA256SUMS.minisig"
  if [ -z "$unsigned" ]; then
    sed -i "s|^RELEASE_KEY=.*|RELEASE_KEY=$(tail -n 1 "$public")|" "$out/install.sh"
  fi
  chmod 755 "$out/install.sh"
  (cd "$out" && sha256sum "baton-$version"-*-linux.* "baton_${debian_version}"_*.deb install.sh >SHA256SUMS)
  if [ -n "$unsigned" ]; then
    echo "unsigned: install.sh refuses these files until SHA256SUMS is signed"
    return
  fi
  minisign -S -s "$key" -m "$out/SHA256SUMS" -t "baton $version" >/dev/null
  minisign -V -H -q -p "$public" -m "$out/SHA256SUMS" || fail "$public is not the public key of $key"
}

read_arguments "$@"
check_key
check_target
need_python
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# Debian sorts a tilde before the end, as a version before its release.
debian_version=${version/-/\~}
name=baton-$version-$machine-linux
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
if [ -n "$bin" ]; then
  bin=$(cd "$bin" && pwd)
  host_bin=$bin
else
  build_programs
fi
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage_files "$work/$name"
make_tarball
make_deb
sign_release
echo "the release of baton $version for $machine is in $out:"
(cd "$out" && cat SHA256SUMS)
