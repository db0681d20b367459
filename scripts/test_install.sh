#!/usr/bin/env bash
# Tests scripts/install.sh with small releases that have a shell script for a program: installations, updates and removals,
# and every refusal, each with minisign and with OpenSSL as the verifier. The script sees only the tools of a bare system.
#
#   scripts/test_install.sh
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

need_minisign
work=$(mktemp -d)
servers=()
finish() {
  [ ${#servers[@]} = 0 ] || kill "${servers[@]}" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
# Set by the machine that this runs on; the installer shall not see them.
unset XDG_CONFIG_HOME SSL_CERT_FILE
machine=$(uname -m)
shell=$(command -v dash || command -v sh)
prefix=$work/prefix
checks=0

# A folder of tools for PATH: those that the installer may need, and the named ones.
tools_with() {
  local folder=$work/tools-$1 tool
  mkdir -p "$folder"
  for tool in sh id uname mktemp rm cat cp mv chmod mkdir rmdir dirname wc od tr sed grep sort comm cut head tail tar gzip \
    sha256sum find "$@"; do
    ln -sf "$(command -v "$tool")" "$folder/$tool"
  done
  echo "$folder"
}

make_key() {
  minisign -G -W -p "$work/$1.pub" -s "$work/$1.key" >/dev/null
}

# release NAME VERSION KEY [CHANGE]: a release in $work/NAME; CHANGE is a command for its unpacked folder.
release() {
  local folder=$work/$1 top=baton-$2-$machine-linux
  rm -rf "$folder" "$work/tree"
  mkdir -p "$folder" "$work/tree/$top/bin" "$work/tree/$top/share/systemd/user" "$work/tree/$top/lib/systemd/system"
  printf '#!/bin/sh\necho baton %s\n' "$2" >"$work/tree/$top/bin/baton"
  chmod 755 "$work/tree/$top/bin/baton"
  cp scripts/deploy/baton-serve.service "$work/tree/$top/share/systemd/user"
  cp scripts/deploy/baton-node.service "$work/tree/$top/lib/systemd/system"
  [ -z "${4:-}" ] || (cd "$work/tree/$top" && eval "$4")
  (cd "$work/tree" && tar -czf "$folder/$top.tar.gz" ${archived:-"$top"})
  (cd "$folder" && sha256sum "$top.tar.gz" >SHA256SUMS)
  sign "$1" "$3"
}

# sign NAME KEY [OPTION]
sign() {
  minisign -S -s "$work/$2.key" -m "$work/$1/SHA256SUMS" -t "$1" ${3:-} >/dev/null
}

# The files below the prefix with their content.
state() {
  [ ! -d "$prefix" ] || (cd "$prefix" && find . -type f -exec sha256sum {} + && find . ! -type f) | sort
}

install_from() {
  local from=$1
  shift
  (cd "$work" && timeout 60 env PATH="$tools" HOME="$work/home" "$shell" "$root/scripts/install.sh" "$from" --prefix "$prefix" "$@") \
    >"$work/output" 2>&1
}

accepts() {
  install_from "$@" || fail "install.sh $* ended with $?: $(cat "$work/output")"
  checks=$((checks + 1))
}

# refuses CODE TEXT ARGUMENT...: the installer ends with this code and this message, and changes no file.
refuses() {
  local code=0 wanted=$1 text=$2 before
  shift 2
  before=$(state)
  install_from "$@" || code=$?
  [ "$code" = "$wanted" ] || fail "install.sh $* ended with $code instead of $wanted: $(cat "$work/output")"
  grep -q -- "$text" "$work/output" || fail "install.sh $* does not say \"$text\": $(cat "$work/output")"
  [ "$(wc -l <"$work/output")" -ge 2 ] || fail "install.sh $* says no fix: $(cat "$work/output")"
  [ "$before" = "$(state)" ] || fail "install.sh $* changed files although it refused"
  checks=$((checks + 1))
}

has_version() {
  [ "$("$prefix/bin/baton")" = "baton $1" ] || fail "$("$prefix/bin/baton") is installed instead of $1"
}

# serve FOLDER [CERTIFICATE KEY]: serves a folder on loopback; sets `port`.
serve() {
  rm -f "$work/port"
  python3 - "$1" "$work/port" "${@:2}" >/dev/null 2>&1 <<'END' &
import functools, http.server, os, ssl, sys
folder, port_file, *certificate = sys.argv[1:]
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
if certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
with open(port_file + ".new", "w") as file:
    file.write(str(server.server_address[1]))
os.rename(port_file + ".new", port_file)
server.serve_forever()
END
  servers+=($!)
  timeout 20 bash -c 'until [ -s "$1" ]; do sleep 0.05; done' bash "$work/port" || fail "the server did not start"
  port=$(cat "$work/port")
}

test_life_of_an_installation() {
  mkdir -p "$prefix/bin"
  touch "$prefix/bin/other"
  local empty
  empty=$(state)
  accepts old --key "$work/ours.pub"
  has_version 0.1.0
  grep -q "^ExecStart=$prefix/bin/baton serve" "$prefix/share/systemd/user/baton-serve.service" || fail "the unit names another program"
  [ "$(stat -c %a "$prefix/bin/baton" "$prefix/lib/baton/files" "$prefix/share" | xargs)" = "755 644 755" ] || fail "wrong modes"
  # The key of the first installation serves for updates; a file that only the older version had goes.
  [ -f "$prefix/share/only-old" ] || fail "a file of the archive is missing"
  accepts new
  has_version 0.2.0
  [ ! -e "$prefix/share/only-old" ] || fail "a file of the older version is still there"
  accepts new
  refuses 7 "Baton 0.2.0 is installed, and this release is 0.1.0" old
  refuses 7 "Baton 0.2.0 is installed, and this release is 0.2.0-rc.1" candidate
  accepts old --allow-older
  has_version 0.1.0
  refuses 6 "the last installation had the key" theirs --key "$work/theirs.pub"
  accepts theirs --key "$work/theirs.pub" --new-key
  refuses 6 "the last installation had the key" new --key "$work/ours.pub"
  accepts --remove
  [ "$empty" = "$(state)" ] || fail "after --remove there is: $(state)"
  refuses 1 "there is no installation" --remove
  accepts old --key "$(tail -n 1 "$work/ours.pub")" --user-units
  [ -f "$work/home/.config/systemd/user/baton-serve.service" ] || fail "--user-units did not put the unit there"
  accepts --remove
  [ ! -e "$work/home/.config" ] || fail "--remove left the user's unit"
}

test_refusals() {
  local ours=$work/ours.pub
  refuses 4 "not signed by the key" theirs --key "$ours"
  refuses 4 "not signed by the key" other-id --key "$work/other-id.pub"
  refuses 4 "not signed by the key" changed-sums --key "$ours"
  refuses 4 "not signed by the key" changed-comment --key "$ours"
  refuses 4 "not signed by the key" legacy --key "$ours"
  refuses 4 "not signed by the key" empty-signature --key "$ours"
  refuses 4 "has not the SHA-256" changed-archive --key "$ours"
  refuses 4 "a file outside its folder" parent --key "$ours"
  refuses 4 "a file outside its folder" absolute --key "$ours"
  refuses 4 "has a link" link --key "$ours"
  refuses 4 "has a link" hard-link --key "$ours"
  refuses 3 "has no programs for" foreign --key "$ours"
  refuses 3 "do not run here" broken --key "$ours"
  refuses 1 "SHA256SUMS cannot be fetched" large --key "$ours"
  refuses 2 "there is no key" old
  refuses 2 "no minisign key" old --key "$work/missing.pub"
  refuses 2 "no https URL" http://192.0.2.1/baton --key "$ours"
  refuses 2 "more than a host and a path" https://127.0.0.1@example.org/baton --key "$ours"
  refuses 2 "there is no folder" nowhere --key "$ours"
  refuses 2 "there is no option --force" old --force
  refuses 2 "a character that a systemd unit cannot have" old --prefix "$work/a b" --key "$ours"
}

make_releases() {
  make_key ours
  make_key theirs
  release old 0.1.0 ours 'touch share/only-old'
  release new 0.2.0 ours
  release candidate 0.2.0-rc.1 ours
  release theirs 0.2.0 theirs
  release changed-archive 0.2.0 ours
  printf x >>"$work/changed-archive/baton-0.2.0-$machine-linux.tar.gz"
  release changed-sums 0.2.0 ours
  sed -i 's/^./&0/' "$work/changed-sums/SHA256SUMS"
  release changed-comment 0.2.0 ours
  sed -i 's/^trusted comment: .*/trusted comment: changed/' "$work/changed-comment/SHA256SUMS.minisig"
  release legacy 0.2.0 ours
  sign legacy ours -l
  release empty-signature 0.2.0 ours
  : >"$work/empty-signature/SHA256SUMS.minisig"
  # The key's bytes under another id.
  release other-id 0.2.0 ours
  tail -n 1 "$work/ours.pub" | base64 -d | { head -c 2 && printf 12345678 && tail -c 32; } | base64 -w 0 >"$work/other-id.pub"
  archived='../outside --absolute-names' && touch "$work/outside" && release parent 0.2.0 ours
  archived="$work/outside --absolute-names" && release absolute 0.2.0 ours && archived=''
  release link 0.2.0 ours 'ln -s /etc/passwd share/link'
  release hard-link 0.2.0 ours 'ln bin/baton bin/again'
  release broken 0.2.0 ours 'printf "#!/bin/sh\nexit 1\n" >bin/baton'
  release foreign 0.2.0 ours
  sed -i "s/$machine/vax/" "$work/foreign/SHA256SUMS" && sign foreign ours
  release large 0.2.0 ours
  head -c 70000 /dev/zero >>"$work/large/SHA256SUMS" && sign large ours
}

test_addresses() {
  serve "$work/new"
  tools=$(tools_with curl minisign)
  accepts "http://127.0.0.1:$port/" --key "$work/ours.pub"
  refuses 1 "cannot be fetched" "http://127.0.0.1:$port/missing" --key "$work/ours.pub"
  tools=$(tools_with wget minisign)
  accepts "http://localhost:$port" --key "$work/ours.pub"
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 \
    -keyout "$work/tls.key" -out "$work/tls.pem" 2>/dev/null
  serve "$work/new" "$work/tls.pem" "$work/tls.key"
  tools=$(tools_with curl minisign)
  refuses 1 "cannot be fetched" "https://127.0.0.1:$port" --key "$work/ours.pub"
  CURL_CA_BUNDLE=$work/tls.pem accepts "https://127.0.0.1:$port" --key "$work/ours.pub"
  accepts --remove
}

test_missing_tools() {
  tools=$(tools_with tar)
  refuses 5 "neither minisign nor OpenSSL 3 is here" new --key "$work/ours.pub"
  refuses 5 "neither curl nor wget is here" https://127.0.0.1/ --key "$work/ours.pub"
  # Another machine, and another system.
  tools=$(tools_with minisign)
  rm "$tools/uname"
  printf '#!/bin/sh\n[ "$1" = -s ] && echo Linux || echo vax\n' >"$tools/uname" && chmod 755 "$tools/uname"
  refuses 3 "no programs for the processor vax" new --key "$work/ours.pub"
  printf '#!/bin/sh\necho Plan9\n' >"$tools/uname"
  refuses 3 "releases are for Linux" new --key "$work/ours.pub"
}

make_releases
for verifier in minisign openssl; do
  tools=$(tools_with "$verifier")
  test_life_of_an_installation
  test_refusals
  echo "$verifier verifies: installation, updates, removal and refusals are right"
done
test_addresses
test_missing_tools
echo "$checks calls of install.sh under $(basename "$shell"): all as expected"
