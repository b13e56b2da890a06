# Two commands to know: `make demo` and `make test`. Both set up what they need.
# What a target does in more than a line stands in scripts/ and judges/.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

# What goes to the command: make demo ARGS='--fast --json'
ARGS ?=

.PHONY: help demo test judges bench fmt lint tidy build clean-tools

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: ## Build, then watch an agent buy, ask, be refused, and settle (offline, simulated PayPal)
	@scripts/setup.sh build
	@cargo run --locked --package earnest -- demo $(ARGS)

test: ## Everything that must pass before a change goes in
	@scripts/setup.sh test
	@scripts/test.sh

judges: ## All outside judges, PayPal's own SDKs included; make judges ARGS='jose sell' for some
	@scripts/setup.sh judges
	@judges/run $(ARGS)

bench: ## Ratios against calibration handlers in the same run (release build)
	@scripts/setup.sh build
	@cargo run --locked --release --package earnest -- bench $(ARGS)

build: ## The release binary
	@scripts/setup.sh build
	@cargo build --locked --release --package earnest

fmt: ## Format the Rust code
	@cargo fmt --all

lint: ## Format check, clippy with warnings denied, and the tidy test
	@scripts/setup.sh test
	@cargo fmt --all -- --check
	@cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
	@$(MAKE) tidy

tidy: ## The rules about the tree itself: crate edges, invariants with tests, no orphan files
	@cargo test --quiet --locked --package earnest --test it -- tidy

clean-tools: ## Remove what npm and pip installed for the outside judges
	@rm -rf judges/*/node_modules judges/*/.venv .tools
