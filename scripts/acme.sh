#!/usr/bin/env bash
# Gets a certificate for `baton serve` from a real ACME server (Debian's pebble) on this machine: the proof by a handshake,
# the renewal, a restart without the server, and a name that cannot be proven.
#
#   scripts/acme.sh
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

skip() {
  echo "skipped: certificates by ACME: $1"
  exit 0
}

if ! command -v pebble >/dev/null 2>&1; then
  [ "$(id -u)" = 0 ] || skip "pebble is missing, and only root can install it"
  install_packages pebble || skip "there is no package pebble"
fi
[ -z "${BATON_PREPARE:-}" ] || exit 0
need_tools
need_programs

work=$(mktemp -d)
running=()
finish() {
  [ ${#running[@]} = 0 ] || { kill "${running[@]}" 2>/dev/null; wait "${running[@]}" 2>/dev/null; } || true
  rm -rf "$work"
}
trap finish EXIT

read -r directory management dns hosts port < <(scripts/free_ports.py 5)

# The authority's own server has a certificate of a root that no system trusts.
tls() { openssl "$@" 2>>"$work/openssl.log"; }
tls req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=root" -keyout "$work/root.key" -out "$work/root.pem"
tls req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=localhost" -keyout "$work/server.key" -out "$work/server.csr"
tls x509 -req -in "$work/server.csr" -CA "$work/root.pem" -CAkey "$work/root.key" -CAcreateserial -days 2 \
  -extfile <(echo "subjectAltName=DNS:localhost,IP:127.0.0.1") -out "$work/server.pem"

pebble-challtestsrv -defaultIPv4 127.0.0.1 -defaultIPv6 "" -dns01 "127.0.0.1:$dns" -http01 "" -https01 "" -tlsalpn01 "" \
  -management "127.0.0.1:$hosts" >"$work/dns.log" 2>&1 &
running+=($!)
# A certificate of half a minute, which is renewed after two thirds of it; a third of the requests is refused for
# its nonce: some so often that the library gives up, and the order begins again.
cat >"$work/pebble.json" <<JSON
{ "pebble": { "listenAddress": "127.0.0.1:$directory", "managementListenAddress": "127.0.0.1:$management",
  "certificate": "$work/server.pem", "privateKey": "$work/server.key", "httpPort": 1, "tlsPort": $port,
  "certificateValidityPeriod": 30 } }
JSON
PEBBLE_VA_NOSLEEP=1 PEBBLE_WFE_NONCEREJECT=33 pebble -config "$work/pebble.json" -dnsserver "127.0.0.1:$dns" >"$work/pebble.log" 2>&1 &
pebble=$!
running+=($pebble)

# serve HOME NAME: sets `serving`.
serve() {
  BATON_LOG=info "$bin/baton" serve --home "$1" --listen "127.0.0.1:$port" --no-key --allow-echo --json \
    --acme "$2" --acme-directory "https://localhost:$directory/dir" --acme-root "$work/root.pem" \
    >"$work/serve.out" 2>>"$work/serve.log" </dev/null &
  serving=$!
  running+=($serving)
}
stop() {
  kill "$serving"
  wait "$serving" || true
}
until_true() {
  local until=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || { tail -n 20 "$work/serve.log" "$work/pebble.log" >&2; fail "this did not come true: $*"; }
    sleep 0.3
  done
}
ask() { curl --silent --fail --cacert "$work/issuer.pem" --resolve "chat.test:$port:127.0.0.1" "https://chat.test:$port/access"; }
answers() { [ "$(ask)" = '{"admitted":true}' ]; }
serial() { openssl s_client -connect "127.0.0.1:$port" -servername chat.test </dev/null 2>/dev/null | openssl x509 -noout -serial; }

until_true 20 curl --silent --fail --cacert "$work/root.pem" --output "$work/issuer.pem" "https://localhost:$management/roots/0"
serve "$work/home" chat.test
until_true 60 answers
first=$(serial)
echo "a first certificate: $first"
grep -q "https://chat.test:$port/v1" "$work/serve.out" || fail "the endpoint names another address: $(cat "$work/serve.out")"
for file in account.json certificate.pem key.pem; do
  mode=$(stat -c %a "$work"/home/acme/*/"$file")
  [ "$mode" = 600 ] || fail "$file has the mode $mode"
done
tls s_client -connect "127.0.0.1:$port" -servername chat.test -alpn acme-tls/1 </dev/null >/dev/null && fail "a proof that nobody asked for was given"

is_renewed() { [ "$(serial)" != "$first" ] && answers; }
until_true 60 is_renewed
second=$(serial)
echo "renewed: $second"

stop
kill "$pebble"
wait "$pebble" || true
serve "$work/home" chat.test
until_true 10 answers
[ "$(serial)" = "$second" ] || fail "a restart did not use the kept certificate"
echo "kept over a restart without the authority"
stop

PEBBLE_VA_NOSLEEP=1 pebble -config "$work/pebble.json" -dnsserver "127.0.0.1:$dns" >>"$work/pebble.log" 2>&1 &
running+=($!)
until_true 20 curl --silent --fail --cacert "$work/root.pem" --output /dev/null "https://localhost:$management/roots/0"

# A process that ended between the writes of key and certificate: the next start gets both anew.
curl --silent --fail --cacert "$work/root.pem" --output "$work/issuer.pem" "https://localhost:$management/roots/0"
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$(echo "$work"/home/acme/*/key.pem)" 2>>"$work/openssl.log"
rm "$work"/home/acme/*/account.json
serve "$work/home" chat.test
until_true 60 answers
echo "a key of another certificate: both are got anew"
stop

curl --silent --fail --data '{"host":"elsewhere.test","addresses":["127.0.0.2"]}' "http://127.0.0.1:$hosts/add-a"
serve "$work/other" elsewhere.test
until_true 60 grep -q "the authority refused the proof" "$work/serve.log"
grep -o "there is no new certificate.*" "$work/serve.log" | tail -n 1
echo "a name that cannot be proven is refused with the cause"
