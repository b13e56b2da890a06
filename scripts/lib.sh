# shellcheck shell=bash
# Sourced by the other scripts: words they share. Not run by itself.

# One line about what happens now; to stderr, because stdout is data.
say() { printf '%s\n' "$*" >&2; }

# Ends the script with a sentence.
die() { say "$*"; exit 1; }

have() { command -v "$1" >/dev/null 2>&1; }

# bounded SECONDS COMMAND…: ends what takes too long, politely, then for good. Where there is no
# `timeout` (it is not part of every system) the command runs without a bound.
bounded() {
    local seconds=$1
    shift
    if have timeout; then
        timeout --kill-after=20 "$seconds" "$@"
    else
        "$@"
    fi
}

# Where cargo builds: CARGO_TARGET_DIR and every config file are honoured.
target_dir() {
    cargo metadata --format-version 1 --no-deps --offline 2>/dev/null |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])' 2>/dev/null ||
        printf '%s\n' "${CARGO_TARGET_DIR:-target}"
}

# step NAME COMMAND…: runs one step, says how long it took, and how it ended.
step() {
    local name=$1 began=$SECONDS
    shift
    say "--- $name"
    "$@" || { local rc=$?; say "--- $name failed ($rc) after $((SECONDS - began)) s"; return "$rc"; }
    say "--- $name: $((SECONDS - began)) s"
}
