#!/bin/sh
# Installs a release of Baton: `install.sh --help`. POSIX sh; nothing else is needed than a system's basic tools and
# minisign or OpenSSL 3. `main` is called on the last line, so that a part of this file does nothing.
set -eu
LC_ALL=C
export LC_ALL

# The publisher's key; scripts/release.sh writes it into the copy of a release.
RELEASE_KEY=

# Most bytes of each file that is fetched: about ten times the size of a release of today.
MAX_SUMS_BYTES=65536
MAX_SIGNATURE_BYTES=4096
MAX_ARCHIVE_BYTES=1073741824
# Most seconds for one file.
FETCH_SECONDS=1800

FAILED=1 USAGE=2 UNSUPPORTED=3 REFUSED=4 NO_TOOL=5 OTHER_KEY=6 OLDER=7

usage() {
  cat <<'END'
Installs a release of Baton, after it has checked its signature.

Usage: install.sh FROM [OPTIONS]
       install.sh --remove [--prefix FOLDER]

FROM is the folder of a release, or its https URL.

Options:
  --prefix FOLDER   Where to install [default: ~/.local; /usr/local for root]
  --key KEY|FILE    The publisher's minisign key, or its file [default: the key in this file, else that of the last installation]
  --new-key         Accept another key than that of the last installation
  --allow-older     Accept an older version than the installed one
  --user-units      Put the user's unit into ~/.config/systemd/user, for a prefix in which systemd does not look
  --remove          Remove all files that were installed below the prefix; conversations and models stay
  --help            Print this

Examples:
  sh install.sh .                                        this folder's release, for this user
  sh install.sh https://example.org/baton/0.1.0          the same from a server
  sudo sh install.sh . --prefix /usr/local               for everybody, with the units of node and relayer
  ~/.local/lib/baton/install.sh URL                    update
  ~/.local/lib/baton/install.sh --remove

Exit codes:
  0  done
  1  failed: the message says why            5  there is no tool to check or fetch with
  2  wrong usage                             6  another key than that of the last installation
  3  there are no programs for this machine  7  an older version than the installed one
  4  refused: the signature, a checksum or the archive is wrong
END
}

# fail CODE PROBLEM FIX
fail() {
  printf 'error: %s\n%s\n' "$2" "$3" >&2
  exit "$1"
}

say() {
  printf '%s\n' "$1"
}

has() {
  command -v "$1" >/dev/null 2>&1
}

# ---- Arguments -------------------------------------------------------------------------------------------------

read_arguments() {
  from='' prefix='' key=$RELEASE_KEY new_key='' allow_older='' user_units='' remove=''
  while [ $# -gt 0 ]; do
    case $1 in
      --prefix | --key) [ $# -ge 2 ] || fail $USAGE "$1 needs a value" "see install.sh --help" ;;
    esac
    case $1 in
      --prefix) prefix=$2 && shift ;;
      --key) key=$2 && shift ;;
      --new-key) new_key=1 ;;
      --allow-older) allow_older=1 ;;
      --user-units) user_units=1 ;;
      --remove) remove=1 ;;
      --help | -h) usage && exit 0 ;;
      -*) fail $USAGE "there is no option $1" "see install.sh --help" ;;
      *) [ -z "$from" ] || fail $USAGE "there are two releases: $from and $1" "name one" && from=${1%/} ;;
    esac
    shift
  done
}

find_prefix() {
  if [ -z "$prefix" ]; then
    prefix=/usr/local
    [ "$(id -u)" = 0 ] || prefix=${HOME:?HOME is not set: name a folder with --prefix}/.local
  fi
  case $prefix in
    /*) ;;
    *) prefix=$PWD/$prefix ;;
  esac
  prefix=${prefix%/}
  case $prefix in
    # systemd would read spaces, percent signs and quotes in a unit.
    *[!A-Za-z0-9/._+@-]*) fail $USAGE "the prefix $prefix has a character that a systemd unit cannot have" \
      "name a folder of letters, digits and . _ + @ - with --prefix" ;;
  esac
  # Not share/baton: below ~/.local that is the private folder of sessions and keys.
  own=$prefix/lib/baton
}

find_machine() {
  [ "$(uname -s)" = Linux ] || fail $UNSUPPORTED "releases are for Linux, and this is $(uname -s)" "build from source: README.md"
  case $(uname -m) in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) fail $UNSUPPORTED "there are no programs for the processor $(uname -m)" "build from source: README.md" ;;
  esac
}

find_key() {
  if [ -n "$key" ] && [ -f "$key" ]; then
    key=$(tail -n 1 "$key")
  fi
  known=''
  if [ -f "$own/release.pub" ]; then
    known=$(tail -n 1 "$own/release.pub")
  fi
  key=${key:-$known}
  [ -n "$key" ] || fail $USAGE "there is no key to check the release with" \
    "pass --key with the key that the publisher shows on a page of its own"
  case $key in
    RW*[!A-Za-z0-9+/=]* | [!R]* | R[!W]*) fail $USAGE "$key is no minisign key, and no file of one" "pass the line that begins with RW" ;;
  esac
  if [ -n "$known" ] && [ "$key" != "$known" ] && [ -z "$new_key" ]; then
    fail $OTHER_KEY "the last installation had the key $known, and this release has $key" \
      "if the publisher announced a new key, pass --new-key; else do not install this"
  fi
}

# ---- Fetching --------------------------------------------------------------------------------------------------

# fetch NAME MOST-BYTES: gets a file of the release into the work folder.
fetch() {
  # Blocks of 512 bytes; a program that writes more is killed.
  (ulimit -f $(($2 / 512 + 1)) && fetch_unlimited "$1" "$work/$1") || fail $FAILED \
    "$1 cannot be fetched from $from, or is larger than $2 bytes" "check the address and the free space of ${TMPDIR:-/tmp}, then run this again"
}

fetch_unlimited() {
  case $from in
    https://* | http://*) ;;
    *)
      cp "$from/$1" "$2"
      return
      ;;
  esac
  if has curl; then
    # A redirect stays with TLS.
    curl --fail --silent --show-error --location --proto '=https,http' --proto-redir '=https' --retry 2 \
      --max-time $FETCH_SECONDS --output "$2" "$from/$1"
  else
    wget -q -T 60 -O "$2" "$from/$1"
  fi
}

check_address() {
  case $from in
    '') fail $USAGE "no release is named" "name its folder or its https URL: install.sh FROM" ;;
    http*://*[@?#]*) fail $USAGE "$from has more than a host and a path" "name a plain https URL" ;;
    https://* | http://127.0.0.1[:/]* | http://localhost[:/]*) ;;
    *://*) fail $USAGE "$from is no https URL" "name an https URL, or a folder" ;;
    *) [ -d "$from" ] || fail $USAGE "there is no folder $from" "name the folder that has SHA256SUMS" ;;
  esac
  case $from in
    http*) has curl || has wget || fail $NO_TOOL "neither curl nor wget is here" \
      "install one of them (Debian: apt-get install curl), or fetch the release by hand and name its folder" ;;
  esac
}

# ---- Checking --------------------------------------------------------------------------------------------------

refuse() {
  fail $REFUSED "$1" "do not use these files: fetch the release again, and tell its publisher if this comes back"
}

# Checks SHA256SUMS against its signature and the key.
check_signature() {
  if has minisign; then
    (cd "$work" && minisign -V -H -q -P "$key" -m SHA256SUMS) >/dev/null 2>&1 || refuse_signature
    tool=minisign
  elif has openssl && openssl pkeyutl -help 2>&1 | grep -q -e -rawin; then
    check_with_openssl
    tool=OpenSSL
  else
    fail $NO_TOOL "neither minisign nor OpenSSL 3 is here, so the signature cannot be checked" \
      "install one of them (Debian: apt-get install minisign), then run this again"
  fi
  say "The signature is by the key $key ($tool)."
}

refuse_signature() {
  refuse "SHA256SUMS is not signed by the key $key"
}

# minisign's format: https://jedisct1.github.io/minisign/#signature-format. A key is "Ed", 8 bytes of its id and 32 bytes; a
# signature is "ED", the id and 64 bytes over the BLAKE2b-512 of the file. A second signature covers the first one and the
# trusted comment.
check_with_openssl() {
  (
    cd "$work"
    decode "$key" >key.bin
    decode "$(sed -n 2p SHA256SUMS.minisig)" >signature.bin
    decode "$(sed -n 4p SHA256SUMS.minisig)" >global.sig
    [ "$(bytes key.bin)" = 42 ] && [ "$(bytes signature.bin)" = 74 ] && [ "$(bytes global.sig)" = 64 ] || exit 1
    [ "$(hex 0 10 key.bin)" = "4564$(hex 2 8 signature.bin)" ] && [ "$(hex 0 2 signature.bin)" = 4544 ] || exit 1
    # The header of an Ed25519 key in DER (RFC 8410).
    { printf '\060\052\060\005\006\003\053\145\160\003\041\000' && tail -c 32 key.bin; } >key.der
    tail -c 64 signature.bin >file.sig
    openssl dgst -blake2b512 -binary SHA256SUMS >digest
    { cat file.sig && sed -n '3s/^trusted comment: //p' SHA256SUMS.minisig | tr -d '\n'; } >covered
    verify_ed25519 digest file.sig && verify_ed25519 covered global.sig
  ) >/dev/null 2>&1 || refuse_signature
}

decode() {
  printf %s "$1" | openssl base64 -d -A
}

bytes() {
  wc -c <"$1" | tr -d ' '
}

# hex SKIP COUNT FILE
hex() {
  od -An -v -tx1 -j "$1" -N "$2" "$3" | tr -d ' \n'
}

verify_ed25519() {
  openssl pkeyutl -verify -pubin -inkey key.der -keyform DER -rawin -in "$1" -sigfile "$2"
}

# Finds this machine's archive in the signed sums. Sets `archive`, `sum` and `version`.
find_archive() {
  archive=''
  while read -r line_sum line_name; do
    case $line_name in
      *[!A-Za-z0-9.+~_-]*) refuse "SHA256SUMS names the file $line_name" ;;
      baton-*-"$machine"-linux.tar.gz)
        [ -z "$archive" ] || refuse "SHA256SUMS names two archives for this machine"
        archive=$line_name sum=$line_sum
        ;;
    esac
  done <"$work/SHA256SUMS"
  [ -n "$archive" ] || fail $UNSUPPORTED "this release has no programs for $machine" "build from source: README.md"
  version=${archive#baton-}
  version=${version%-"$machine"-linux.tar.gz}
}

# A tilde sorts before the end: 0.2.0-rc.1 comes before 0.2.0.
check_version() {
  installed=''
  if [ -f "$own/version" ]; then
    installed=$(cat "$own/version")
  fi
  [ -n "$installed" ] && [ "$installed" != "$version" ] && [ -z "$allow_older" ] || return 0
  first=$(printf '%s\n' "$installed" "$version" | tr - '~' | sort -V | head -n 1 | tr '~' -)
  [ "$first" = "$installed" ] || fail $OLDER "Baton $installed is installed, and this release is $version" \
    "pass --allow-older if you want the older one"
}

check_archive() {
  found=$(sha256sum <"$work/$archive")
  [ "${found%% *}" = "$sum" ] || refuse "$archive has not the SHA-256 that SHA256SUMS states"
  top=baton-$version-$machine-linux
  # The type of an entry is the first letter; a folder or a file has no arrow to another one.
  if tar -tvzf "$work/$archive" | grep -q -v '^[-d]'; then
    refuse "$archive has a link or a device"
  fi
  tar -tzf "$work/$archive" >"$work/names" || refuse "$archive cannot be read"
  if grep -q -v "^$top/[A-Za-z0-9._+/-]*\$" "$work/names" || grep -q -E '(^|/)\.\.(/|$)' "$work/names"; then
    refuse "$archive has a file outside its folder"
  fi
}

unpack() {
  tar -xozf "$work/$archive" -C "$work" || fail $FAILED "$archive cannot be unpacked" "check the free space of ${TMPDIR:-/tmp}"
  tree=$work/$top
  "$tree/bin/baton" --version >/dev/null 2>&1 || fail $UNSUPPORTED \
    "the programs do not run here: $("$tree/bin/baton" --version 2>&1 | head -n 1)" \
    "they need libgcc, and a GNU C library as new as the release's; if ${TMPDIR:-/tmp} forbids programs, set TMPDIR to another folder"
}

# ---- Installing ------------------------------------------------------------------------------------------------

# Makes a folder with its parents, and records those that were not there.
make_folder() {
  [ ! -d "$1" ] || return 0
  make_folder "$(dirname "$1")"
  mkdir -m 755 "$1" || fail $FAILED "the folder $1 cannot be made" "choose another --prefix, or run this as a user who may"
  printf '%s/\n' "$1" >>"$work/list"
}

# put SOURCE TARGET MODE: replaces a file in one step, so that a running program and an interrupted call see a whole one.
put() {
  make_folder "$(dirname "$2")"
  [ ! -d "$2" ] || fail $FAILED "$2 is a folder" "move it away, then run this again"
  printf '%s\n' "$2" >>"$work/list"
  { cp "$1" "$2.new.$$" && chmod "$3" "$2.new.$$" && mv -f "$2.new.$$" "$2"; } || {
    rm -f "$2.new.$$"
    fail $FAILED "$2 cannot be written" "check the free space and the rights of $(dirname "$2"), then run this again"
  }
}

# Where a file of the archive belongs; nothing where it does not belong anywhere here.
target_of() {
  case $1 in
    lib/systemd/system/*) [ "$(id -u)" != 0 ] || printf %s "$prefix/$1" ;;
    share/systemd/user/*)
      if [ -n "$user_units" ]; then
        printf %s "${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/${1##*/}"
      else
        printf %s "$prefix/$1"
      fi
      ;;
    *) printf %s "$prefix/$1" ;;
  esac
}

# Writes each file of the archive with its target into the plan.
plan_files() {
  sed -n "s|^$top/\(.*[^/]\)\$|\1|p" "$work/names" | while read -r file; do
    target=$(target_of "$file")
    [ -z "$target" ] || printf '%s %s\n' "$file" "$target"
  done >"$work/plan"
}

install_files() {
  : >"$work/list"
  : >"$work/old"
  if [ -f "$own/files" ]; then
    cp "$own/files" "$work/old"
  fi
  # First a list of the old and the new files, so that --remove takes an interrupted installation away too.
  make_folder "$own"
  { cat "$work/old" "$work/list" && cut -d ' ' -f 2- "$work/plan"; } | sort -u >"$work/union"
  put "$work/union" "$own/files" 644
  while read -r file target; do
    case $file in
      *.service) sed -i "s|/usr/local/bin/|$prefix/bin/|g" "$tree/$file" ;;
    esac
    mode=644
    [ ! -x "$tree/$file" ] || mode=755
    put "$tree/$file" "$target" $mode
  done <"$work/plan"
}

# Writes the list, the version and the key, and removes files that only the older version had.
record() {
  printf '%s\n' "$version" >"$work/version"
  printf 'untrusted comment: the key of the installed release of Baton\n%s\n' "$key" >"$work/release.pub"
  put "$work/version" "$own/version" 644
  put "$work/release.pub" "$own/release.pub" 644
  # Folders that an earlier version made are still this installation's.
  { cat "$work/list" && sed -n '/\/$/p' "$work/old"; } | sort -u >"$work/files"
  sort -u "$work/old" | comm -23 - "$work/files" >"$work/gone"
  put "$work/files" "$own/files" 644
  while read -r file; do
    rm -f "$file"
  done <"$work/gone"
}

# Removes the recorded files, then the recorded folders that are empty, deepest first.
remove_all() {
  [ -f "$own/files" ] || fail $FAILED "there is no installation in $prefix" "name its folder with --prefix"
  sort -r "$own/files" >"$work/old"
  while read -r file; do
    case $file in
      */ | "$own/files") ;;
      *) rm -f "$file" || fail $FAILED "$file cannot be removed" "run this as the user who installed it" ;;
    esac
  done <"$work/old"
  # Last, so that an interrupted call can be repeated.
  rm -f "$own/files"
  while read -r file; do
    case $file in
      */) rmdir "$file" 2>/dev/null || : ;;
    esac
  done <"$work/old"
  say "Baton is removed from $prefix. Conversations, keys and models are where they were."
}

say_what_next() {
  say "Baton $version is installed in $prefix."
  case :$PATH: in
    *":$prefix/bin:"*) ;;
    *) say "Put it on the path: export PATH=\"$prefix/bin:\$PATH\"" ;;
  esac
  [ "$(id -u)" != 0 ] || say "The units of node and relayer are in $prefix/lib/systemd/system; none is enabled."
  [ -n "${SSL_CERT_FILE:-}$(find /etc/ssl/certs /etc/pki/tls/certs -name '*.crt' -o -name '*.pem' 2>/dev/null | head -n 1)" ] ||
    say "Baton needs the system's CA certificates, which are missing (Debian: apt-get install ca-certificates)."
  [ -n "${PIP_INDEX_URL:-}" ] || python3 -m pip --version >/dev/null 2>&1 ||
    say "Baton fetches models from a package index. Name one (export PIP_INDEX_URL=https://HOST/simple), or install pip, which knows one."
  say "Next: baton try"
}

main() {
  read_arguments "$@"
  find_prefix
  umask 077
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' HUP INT TERM
  if [ -n "$remove" ]; then
    remove_all
    return
  fi
  check_address
  find_machine
  find_key
  say "Fetching the checksums from $from ..."
  fetch SHA256SUMS $MAX_SUMS_BYTES
  fetch SHA256SUMS.minisig $MAX_SIGNATURE_BYTES
  check_signature
  find_archive
  check_version
  say "Fetching $archive ..."
  fetch "$archive" $MAX_ARCHIVE_BYTES
  check_archive
  unpack
  say "Installing into $prefix ..."
  plan_files
  install_files
  record
  say_what_next
}

main "$@"
