#!/usr/bin/env bash
# What `make test` runs, one step after another; the first that fails ends it.
#
# Every step is bounded. Together the bounds are far above what the steps take: they are there for
# what hangs, not for what is slow.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        local profile=default
        [ -n "${CI:-}" ] && profile=ci
        bounded 1500 cargo nextest run --locked --profile "$profile" "$@"
    else
        # The same tests without cargo-nextest: fewer at once, and no bound for each of them.
        bounded 1500 cargo test --locked --lib --bins --tests --examples "$@"
    fi
}

# The whole suite of the program once more, every test's books in a schema of a PostgreSQL server's
# (crates/earnest/tests/it/engine.rs). Tests about files of SQLite say `skipped: …`. Picked out of the
# whole workspace: the package alone would be built anew, with other features of what it uses. What has
# no books, or has them on a server in either run, ran already.
on_postgres() {
    local one=(--package earnest --test it)
    local ran='test(/^(tidy|held|database)::/) or test(/_at_two_nodes_together$/)'
    if cargo nextest --version >/dev/null 2>&1; then
        one=(--workspace -E "package(earnest) and binary(it) and not ($ran)")
    fi
    EARNEST_TEST_ENGINE=postgres tests "${one[@]}"
}

# The program that was tested, put aside for the outside judges before another build takes its place.
keep_tested() {
    cp "$(target_dir)/debug/earnest" "$(target_dir)/debug/earnest-tested"
}

# Tests that plant a bug and expect the suite to fail on it. They need a feature that no other build
# has, so they are a run of their own; finding none is a failure.
planted() {
    local args=() manifest package
    for manifest in crates/*/Cargo.toml; do
        grep -q '^planted *=' "$manifest" || continue
        package=$(basename "$(dirname "$manifest")")
        args+=(--package "$package" --features "$package/planted")
    done
    if cargo nextest --version >/dev/null 2>&1; then
        bounded 900 cargo nextest run --locked "${args[@]}" -E 'test(/planted/)'
    else
        bounded 900 cargo test --locked --tests "${args[@]}" planted
    fi
}

# Whether the shared inputs are here: a folder `shared` beside the checkout, or what EARNEST_SHARED
# names. Without them some tests have nothing to compare with and pass without looking; each says
# "skipped: …", which a runner that hides the output of passing tests does not show.
shared() {
    local dir=$PWD
    [ -n "${EARNEST_SHARED:-}" ] && { [ -d "$EARNEST_SHARED" ]; return; }
    while [ "$dir" != / ]; do
        dir=$(dirname "$dir")
        [ -d "$dir/shared" ] && return 0
    done
    return 1
}

# The last word, so that a green run does not claim what it did not look at. A fresh checkout and CI
# have no shared inputs, so their absence is no failure.
looked_at() {
    shared && return 0
    say "--- skipped: no ../shared (EARNEST_SHARED names it), so nothing was compared with PayPal's" \
        "OpenAPI documents or with the cases of public reports"
}

began=$SECONDS
step 'format' bounded 120 cargo fmt --all -- --check
step 'clippy' bounded 1200 cargo clippy --locked --workspace --all-targets -- -D warnings
step 'clippy, all features' \
    bounded 600 cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
step 'tests' tests --workspace
step 'tests on PostgreSQL' on_postgres
step 'the tested program' keep_tested
step 'planted bugs' planted
step 'documentation tests' bounded 900 cargo test --locked --workspace --doc
step 'outside checks' env EARNEST_BIN="$(target_dir)/debug/earnest-tested" judges/run --fast
say "--- all passed in $((SECONDS - began)) s"
looked_at
