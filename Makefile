# `make setup test` checks everything on a fresh machine; `make test` installs nothing; most other targets are parts of it.

SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/sbin:/sbin

CARGO ?= cargo
# The number of interoperability tests that run at once. They mostly wait for timers, so there are more of them than cores.
JOBS ?= 12
# The number of unit tests that run at once in each program: at least four, because some of them wait as well.
RUST_TEST_THREADS ?= $(shell n=$$(nproc); echo $$((n > 4 ? n : 4)))
# The folder that contains the programs for make interop-run.
INTEROP ?= target/debug
# The seed of the first generated case of make filter-diff.
SEED ?= 1000

.PHONY: test setup try deps fmt lint unit interop interop-build interop-run nft-diff interop-old interop-postgres packages-test musl filter-diff roots gate gate-accept deny sanitize msrv cross doc build release packages reproducible demo demo-postgres demo-mesh lab lab-smoke lab-build hooks

test:
	@scripts/test.sh

# Installs the programs, peers and databases that the checks use; as root, on Debian and its derivatives.
setup:
	@scripts/deps.sh install
	@scripts/pgbouncer.sh
	@scripts/plugins.sh
	@scripts/softhsm.sh
	@scripts/frontends.sh
	@scripts/prometheus.sh
	@scripts/package-roots.sh || true
	@scripts/roots.sh tinc

# Lists what is missing, and installs nothing.
deps:
	@scripts/deps.sh check

fmt:
	$(CARGO) fmt --all --check

# Makes git commit check the staged changes: formatting, and words that the prose avoids. The check takes a second.
hooks:
	git config core.hooksPath scripts/hooks

lint:
	scripts/words.sh --all
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --workspace --all-targets --no-default-features --locked -- -D warnings
	! $(CARGO) tree -p adit-cli --no-default-features --edges normal --prefix none --locked | grep -E '^(adit-app-bridge|adit-app-mesh|adit-app-postgres|adit-app-tinc|adit-bridge|adit-mesh|adit-postgres|adit-tinc|tokio-postgres) '

unit:
	RUST_TEST_THREADS=$(RUST_TEST_THREADS) CARGO=$(CARGO) scripts/unit.py --workspace --locked

# Uses the profile and the features of the unit tests, so that nothing is compiled twice.
interop: interop-build interop-run nft-diff

interop-build:
	$(CARGO) build --locked --quiet -p adit-cli -p adit-interop

interop-run:
	$(INTEROP)/adit-interop run --jobs $(JOBS)

nft-diff:
	$(INTEROP)/adit-interop nft-diff

# Compares the filter with the kernel's nftables: more than 100,000 packets over more than 200 rule sets, in about two
# minutes. SEED=... selects different rule sets.
filter-diff:
	$(CARGO) build --locked --quiet -p adit-interop
	target/debug/adit-interop nft-diff --seed $(SEED) --sets 220

# Tests against openvpn 2.5 and 2.7, from roots that scripts/roots.sh fetches from Debian's bullseye and sid.
interop-old: roots
	$(CARGO) build --locked --quiet -p adit-cli -p adit-interop
	target/debug/adit-interop run --jobs $(JOBS) --old required

roots:
	@scripts/roots.sh

# The tests with a database, with the installed PostgreSQL (15 or later), and with 17 and 18 from roots that
# scripts/postgres-roots.sh fetches from Debian's trixie and sid.
interop-postgres: interop-build
	@scripts/postgres-roots.sh
	target/debug/adit-interop run --jobs $(JOBS) postgres/
	target/debug/adit-interop run --jobs $(JOBS) mesh/directory
	for version in 17 18; do for cases in postgres/ mesh/directory; do \
	    echo "PostgreSQL $$version: $$cases"; \
	    ADIT_POSTGRES_ROOT=target/roots/postgres-$$version target/debug/adit-interop run --jobs $(JOBS) $$cases || exit 1; \
	done; done

# The tests of the packages in Debian 12, 13 and sid, and the static program; make interop runs those in Debian 12.
PACKAGE_SUITES ?= bookworm trixie sid
packages-test: interop-build
	@scripts/package-roots.sh $(PACKAGE_SUITES)
	ADIT_PACKAGE_SUITES="$(PACKAGE_SUITES)" target/debug/adit-interop run --jobs $(JOBS) packages/
	@$(MAKE) --no-print-directory musl PROFILE=try

# Builds the static program with the compiler of Debian's sid, on a machine whose Rust has no standard library for musl, and runs it
# in a root that has nothing else. Needs root.
musl:
	@scripts/musl.sh root
	@scripts/musl.sh build $(PROFILE)
	@scripts/musl.sh check

# Fails if the data path takes more instructions than the accepted baseline. The counts are exactly reproducible.
gate:
	$(CARGO) run --profile gate --locked --quiet -p adit-icount -- check testing/icount/baseline

gate-accept:
	$(CARGO) run --profile gate --locked --quiet -p adit-icount -- accept testing/icount/baseline

deny:
	@scripts/deny.sh

# Tests the data plane's threads under ThreadSanitizer; needs a nightly toolchain with rust-src, and root.
sanitize:
	RUSTFLAGS=-Zsanitizer=thread cargo +nightly test -Zbuild-std --target $(shell rustc -vV | sed -n 's/^host: //p') \
	    --target-dir target/sanitize --locked -p adit-openvpn-data --test data_path -- races workers

# Checks the workspace with the oldest supported Rust.
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
msrv:
	rustup toolchain install --profile minimal $(MSRV)
	cargo +$(MSRV) check --workspace --all-targets --locked --target-dir target/msrv

# Builds a static binary with musl, and runs unit tests for aarch64 under qemu.
cross:
	@scripts/cross.sh

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet

build:
	$(CARGO) build --release --locked -p adit-cli

# Builds the packages under target/packages, with SHA256SUMS and a bill of materials: deb, rpm, tarball, container image.
packages:
	@scripts/packages-build.sh

# Builds the packages twice and compares them. PROFILE=try takes a third of the time.
PROFILE ?= release
reproducible:
	@scripts/reproducible.sh $(PROFILE)

# Builds adit for trying it out, in two and a half minutes on two cores: less than half the time of a release. Needs root and
# /dev/net/tun.
try:
	@echo "building adit to try it: about 2.5 minutes on two cores the first time (a release takes more than twice as long)"
	$(CARGO) build --profile try --locked -p adit-cli

demo: try
	target/try/adit demo

# Shows a throw-away database and two nodes, whose packets become rows.
demo-postgres: try
	target/try/adit postgres demo

# Shows a mesh as it forms: five machines, three of them behind two kinds of NAT, the loss of paths and relays, and a removal.
demo-mesh:
	$(CARGO) build --profile try --locked -p adit-cli -p adit-interop
	target/try/adit-interop demo-mesh

# Refused while a table of README.md or docs/benchmarks.md is older than the code that it measured.
release: lab-build
	target/release/adit-lab publish --check

lab-build:
	$(CARGO) build --release --locked -p adit-cli -p adit-lab

# Measures the figures of docs/benchmarks.md: under 20 minutes, with every peer that can be installed; prints the report's folder at
# the end.
lab: lab-build
	@scripts/lab-deps.sh
	target/release/adit-lab run standard

# Measures for under 2 minutes, with the installed peers.
lab-smoke: lab-build
	@scripts/lab-deps.sh --local
	target/release/adit-lab run smoke
