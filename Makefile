# Shortcuts only: everything here is one command that can be typed as well.

CARGO ?= cargo
export CARGO_TERM_COLOR ?= auto

.PHONY: run test deps fmt lint tests deny bench
.NOTPARALLEL:

## Builds in release and serves on the embedded store. ARGS="--http 127.0.0.1:9000" passes arguments on.
run:
	$(CARGO) run --release --quiet --bin slidegate -- serve $(ARGS)

## Everything that must hold: formatting, lints, all tests and doctests.
test: deps fmt lint tests
	@if command -v cargo-deny >/dev/null; then $(MAKE) --no-print-directory deny; \
	else echo "cargo-deny is not installed: 'make deny' checks licences and sources"; fi
	@echo "all checks passed"

## What the tests need beside Rust: curl, which runs the command that the server prints.
deps:
	@command -v curl >/dev/null || { apt-get update -qq && apt-get install -y -qq curl >/dev/null; }

fmt:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --no-deps --workspace

tests:
	$(CARGO) test --workspace

## Licences, banned crates and where crates come from. Builds cargo-deny if it is not there, which takes minutes.
deny:
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	cargo-deny --offline check --hide-inclusion-graph licenses bans sources

## Beside the peers, in one run, some minutes. Needs valgrind for the count of instructions.
bench:
	@command -v valgrind >/dev/null || { apt-get update -qq && apt-get install -y -qq valgrind >/dev/null; } || true
	$(CARGO) build --release --quiet --package slidegate-bench
	./target/release/slidegate-bench
