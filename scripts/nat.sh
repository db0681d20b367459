#!/usr/bin/env bash
# Nodes and people behind routers: two LANs with address translation and a public side, as network namespaces of this machine.
#
#   scripts/nat.sh            needs root, iproute2 and iptables; says so and ends where the machine forbids it
#
# A node in the first LAN serves a client in the second: over a hole punched through both routers, and where the routers let
# nothing through between the LANs, over a relay, with an answer far longer than a relay's usual 128 KiB.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

skip() {
  echo "skipped: $1"
  exit 0
}
need_tools
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
if ! command -v ip >/dev/null || ! command -v iptables >/dev/null; then
  command -v apt-get >/dev/null || skip "there is no iproute2 or no iptables here"
  install_packages iproute2 iptables
fi

tag=bt$$
folder=$(mktemp -d)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  for name in pub ra rb a b r2; do ip netns del "$tag-$name" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap cleanup EXIT
ip netns add "$tag-pub" 2>/dev/null || skip "this machine lets nobody make network namespaces"
for name in ra rb a b r2; do ip netns add "$tag-$name"; done
in_ns() {
  local name=$1
  shift
  ip netns exec "$tag-$name" "$@"
}
in_ns ra iptables -t nat -L >/dev/null 2>&1 || skip "this machine translates no addresses (iptables -t nat)"

# The public side: a bridge with a store and a relay on it, a second public node, and both routers.
in_ns pub ip link add br0 type bridge
in_ns pub ip addr add 203.0.113.1/24 dev br0
in_ns pub ip link set br0 up
in_ns pub ip link set lo up
plug() { # namespace, address: a cable to the public side
  ip link add "w-$1" netns "$tag-pub" type veth peer name wan netns "$tag-$1"
  in_ns pub ip link set "w-$1" master br0
  in_ns pub ip link set "w-$1" up
  in_ns "$1" ip addr add "$2/24" dev wan
  in_ns "$1" ip link set wan up
  in_ns "$1" ip link set lo up
}
plug r2 203.0.113.2
plug ra 203.0.113.21
plug rb 203.0.113.22
lan() { # router, host, network: a LAN behind a router that translates and lets nobody in
  ip link add lan netns "$tag-$1" type veth peer name eth netns "$tag-$2"
  in_ns "$1" ip addr add "$3.1/24" dev lan
  in_ns "$1" ip link set lan up
  in_ns "$2" ip addr add "$3.2/24" dev eth
  in_ns "$2" ip link set eth up
  in_ns "$2" ip link set lo up
  in_ns "$2" ip route add default via "$3.1"
  in_ns "$1" sysctl -qw net.ipv4.ip_forward=1
  in_ns "$1" iptables -t nat -A POSTROUTING -o wan -j MASQUERADE
  in_ns "$1" iptables -P FORWARD DROP
  in_ns "$1" iptables -A FORWARD -i lan -j ACCEPT
  in_ns "$1" iptables -A FORWARD -m state --state ESTABLISHED,RELATED -j ACCEPT
  # Unasked packets are dropped in silence, as routers for homes do.
  in_ns "$1" iptables -A INPUT -i wan -m state --state ESTABLISHED,RELATED -j ACCEPT
  in_ns "$1" iptables -A INPUT -i wan -j DROP
}
lan ra a 192.168.31
lan rb b 192.168.32

need_programs

background() { # namespace, log, command
  local name=$1 log=$2
  shift 2
  ip netns exec "$tag-$name" "$@" >"$folder/$log.out" 2>"$folder/$log.err" &
  pids+=($!)
}
ready() { # log: waits for the line that says that a process serves
  for _ in $(seq 600); do
    grep -q '"event":"ready"' "$folder/$1.out" 2>/dev/null && return
    sleep 0.1
  done
  cat "$folder/$1.err" >&2
  fail "$1 did not start"
}
fail() {
  echo "FAILED: $1" >&2
  for log in "$folder"/*.err; do
    echo "--- $log" >&2
    tail -n 25 "$log" >&2
  done
  exit 1
}

background pub store "$bin/baton-testnet" store --data-dir "$folder/store" --listen 203.0.113.1:31415 --shards 10
store=(--publisher http://203.0.113.1:31415 --shards 10)
node() { # namespace, log, more
  local name=$1 log=$2
  shift 2
  background "$name" "$log" "$bin/baton-node" run --json --engine echo --data-dir "$folder/$log" "${store[@]}" --mdns false \
    --upnp false --admin none --log-format json --log debug --listen /ip4/0.0.0.0/tcp/4001 --listen /ip4/0.0.0.0/udp/4001/quic-v1 "$@"
  ready "$log"
}
address() { # log, public address: where others reach a node
  local peer
  peer=$(sed -n 's/.*"peer_id":"\([^"]*\)".*/\1/p' "$folder/$1.out" | head -1)
  echo "/ip4/$2/tcp/4001/p2p/$peer"
}
# The public nodes serve turns too, but at a price, so that the client's turns go to the hidden one.
node pub relay --input-price 1000000
node r2 second --input-price 1000000 --bootstrap "$(address relay 203.0.113.1)"
node a hidden --bootstrap "$(address relay 203.0.113.1)" --bootstrap "$(address second 203.0.113.2)"

say() { # log, message: one turn of the client's in the second LAN
  in_ns b "$bin/baton" chat --home "$folder/home-$1" --config /dev/null --message - --json --allow-echo --max-price 0 --discover "${store[@]}" \
    --node "$(address relay 203.0.113.1)" --node "$(address second 203.0.113.2)" 2>"$folder/$1.err" >"$folder/$1.out"
}
direct() { # packets that went from LAN to LAN
  in_ns rb iptables -nvxL FORWARD | awk '/count direct/ { print $1; exit }'
}
for router in ra rb; do
  other=203.0.113.22
  [ "$router" = rb ] && other=203.0.113.21
  in_ns "$router" iptables -I FORWARD -s "$other" -m comment --comment "count direct" -j ACCEPT
done

echo "a node behind a router, found through the network and reached through a hole"
head -c 300 /dev/zero | tr '\0' 'x' >"$folder/short"
for _ in $(seq 40); do
  say punched <"$folder/short" && break
  sleep 1
done
grep -q '"text"\|xxxxxxxx' "$folder/punched.out" || fail "no turn came about"
# The first turn may have gone through the relay while the hole was being punched; a longer talk goes on directly.
for _ in $(seq 20); do
  say punched <"$folder/short" || true
  [ "$(direct)" -gt 20 ] && break
  sleep 1
done
[ "$(direct)" -gt 20 ] || fail "nothing went from LAN to LAN: no hole was punched"
echo "  ok: $(direct) packets went from LAN to LAN"

echo "with hole punching blocked, through a relay, with a long answer"
in_ns ra iptables -I FORWARD -d 203.0.113.22 -j DROP
in_ns rb iptables -I FORWARD -d 203.0.113.21 -j DROP
in_ns ra iptables -I FORWARD -s 203.0.113.22 -j DROP
in_ns rb iptables -I FORWARD -s 203.0.113.21 -j DROP
before=$(direct)
head -c 300000 /dev/zero | tr '\0' 'y' >"$folder/long"
for _ in $(seq 10); do
  say relayed <"$folder/long" && break
  sleep 1
done
grep -q 'yyyyyyyy' "$folder/relayed.out" || fail "no turn came about through the relay"
[ "$(wc -c <"$folder/relayed.out")" -gt 131072 ] || fail "the answer was cut off: $(wc -c <"$folder/relayed.out") bytes"
[ "$(direct)" = "$before" ] || fail "something went from LAN to LAN though it was blocked"
echo "  ok: an answer of $(wc -c <"$folder/relayed.out") bytes"
