#!/usr/bin/env bash
# Installs the system packages that are missing, and only those.
#
#   scripts/setup.sh build    what `cargo build` needs: a C compiler, for SQLite and ring
#   scripts/setup.sh test     that, what the outside checks need (Node with npm, Python with venv), and
#                             PostgreSQL with a pooler, which the tests start by themselves
#   scripts/setup.sh judges   that, Chromium for the judge of the pages, nginx and Caddy for that of
#                             gateways
#
# Where everything is there already it does nothing and needs no rights.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

what=${1:-build}
case $what in build | test | judges) ;; *) die "usage: scripts/setup.sh build|test|judges" ;; esac

# Rust comes from its own installer, not from apt: what Debian packages is too old.
have cargo || die "cargo is missing: install Rust 1.95 or later, with clippy and rustfmt, then try again"

missing=()
have cc || missing+=(build-essential)
if [ "$what" != build ]; then
    cargo fmt --version >/dev/null 2>&1 || die "rustfmt is missing: rustup component add rustfmt"
    cargo clippy --version >/dev/null 2>&1 || die "clippy is missing: rustup component add clippy"
    have git || missing+=(git)
    have timeout || missing+=(coreutils)
    have node || missing+=(nodejs)
    have npm || missing+=(npm)
    have python3 || missing+=(python3)
    # Debian ships Python without what `python3 -m venv` needs.
    python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3-venv)
    # Debian keeps a server's programs out of the path: scripts/test-postgres.sh looks there too.
    { ls /usr/lib/postgresql/*/bin/initdb || have initdb; } >/dev/null 2>&1 || missing+=(postgresql)
    { have pgbouncer || [ -x /usr/sbin/pgbouncer ]; } || missing+=(pgbouncer)
    have setpriv || missing+=(util-linux)
    have pgrep || missing+=(procps)
fi
if [ "$what" = judges ] && [ -z "${EARNEST_CHROMIUM:-}" ]; then
    have chromium || missing+=(chromium)
fi
if [ "$what" = judges ]; then
    { have nginx || [ -x /usr/sbin/nginx ]; } || missing+=(nginx-light)
    have caddy || missing+=(caddy)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

have apt-get || die "missing: ${missing[*]} (no apt-get here; install them with your own package manager)"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    have sudo || die "missing: ${missing[*]} (install them as root, then try again)"
    as_root=(sudo)
fi
say "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
bounded 300 "${as_root[@]}" apt-get update -qq
bounded 900 "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null
