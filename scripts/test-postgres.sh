#!/usr/bin/env bash
# A PostgreSQL cluster for one run of the tests: fast, worth nothing after a power cut, on a free port
# of the loopback interface, run by a user who is not root. Tests make schemas of their own in it.
#
#   scripts/test-postgres.sh PID    starts it, prints EARNEST_TEST_POSTGRES=URL, and returns; when the
#                                   process PID has ended, the cluster is stopped and deleted
#
# cargo-nextest runs it before the tests, without PID and with NEXTEST_ENV, and is then the process.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

whose=${1:-$PPID}
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1 || true)
[ -n "$bin" ] || bin=$(pg_config --bindir 2>/dev/null) || die "PostgreSQL is missing: scripts/setup.sh test"

as_server=()
folder=$(mktemp -d -t earnest-pg-XXXXXX)
if [ "$(id -u)" -eq 0 ]; then
    id postgres >/dev/null 2>&1 || die "no user 'postgres': scripts/setup.sh test"
    chown postgres "$folder"
    as_server=(setpriv --reuid postgres --regid postgres --clear-groups --)
fi
export LC_ALL=C
cd /
"${as_server[@]}" "$bin/initdb" -A trust -U postgres -E UTF8 --locale=C -N -D "$folder/data" >/dev/null

options="-c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=400"
options="$options -c fsync=off -c synchronous_commit=off -c full_page_writes=off"
for _ in 1 2 3 4 5 6 7 8 9 10; do
    port=$((20000 + RANDOM % 12000))
    if "${as_server[@]}" "$bin/pg_ctl" -w -s -D "$folder/data" -l "$folder/log" \
        -o "-p $port $options" start >/dev/null 2>&1; then
        break
    fi
    port=
done
[ -n "$port" ] || { cat "$folder/log" >&2; rm -rf "$folder"; die "the tests' PostgreSQL did not start"; }

# Nobody waits for this one: it goes when whoever asked has gone.
setsid bash -c '
    while kill -0 "$1" 2>/dev/null; do sleep 1; done
    shift; folder=$1; bin=$2; shift 2
    "$@" "$bin/pg_ctl" -s -m immediate -D "$folder/data" stop
    rm -rf "$folder"
' watch "$whose" "$folder" "$bin" "${as_server[@]}" </dev/null >/dev/null 2>&1 &

line="EARNEST_TEST_POSTGRES=postgres://postgres@127.0.0.1:$port/postgres"
if [ -n "${NEXTEST_ENV:-}" ]; then echo "$line" >>"$NEXTEST_ENV"; else echo "$line"; fi
