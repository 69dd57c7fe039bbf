# Everything a person types. What takes more than a line lives in scripts/.

PREFIX ?= /usr/local

# Files that the user of the servers must read are made on the way.
SHELL := /bin/bash
.SHELLFLAGS := -c 'umask 022; eval "$$0"'

# Tests wait for servers more than they compute.
THREADS ?= $(shell echo $$(( 2 * $$(nproc) )))

# Programs that scripts/setup installed for this checkout.
export PATH := $(CURDIR)/.deps/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup build demo test lab-acceptance experiments torture chaos fuzz check bench bench-full bench-tracker limits install clean

help: ## say what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install what building, testing and trying needs
	@scripts/setup

build: ## the programs, into target/release
	@scripts/setup --build
	cargo build --locked --release --package pgstrata --package pgstrata-lab --bins

demo: ## full backup, load, incrementals, point-in-time restore, proof
	@scripts/setup --demo
	cargo build --locked --release --package pgstrata
	@scripts/demo

test: setup ## all tests, against real PostgreSQL and a real S3 server
	scripts/test --test-threads $(THREADS) $(TESTS)

lab-acceptance: setup ## every experiment of the lab at its smallest, on a quiet machine: a quarter of an hour
	cargo build --locked --workspace --bins
	cargo nextest run --locked --workspace --test acceptance --run-ignored only --test-threads 1 --no-capture

experiments: setup ## every experiment of the lab; PRESET=tiny (ten minutes), small (two hours), paper or large
	@scripts/experiments $(PRESET)

torture: setup ## page tracker under kills and restarts, half an hour each server
	ext/test/run --only torture --long 15 16 17 18

# Further options in CHAOS, such as CHAOS='--tracker --store s3'.
chaos: setup ## a server and pgstrata driven at random, with SEED=N, for MINUTES=10, on MAJOR=15
	cargo build --locked --package pgstrata --package pgstrata-lab --bins
	target/debug/pgstrata-lab chaos --minutes $(or $(MINUTES),10) --major $(or $(MAJOR),15) $(if $(SEED),--seed $(SEED)) $(CHAOS)

fuzz: ## decoders and deciders under fuzzing: TARGET=frame (or all) MINUTES=10; scripts/fuzz --list names them
	@scripts/fuzz "$(TARGET)" $(MINUTES)

check: setup ## formatting, lints, documentation, house rules
	scripts/check

bench: setup ## speed and memory as ratios, measured in one run; what sealing costs, too
	@scripts/bench small

bench-full: setup ## the same with more data, every change source, and chains
	@scripts/bench full

bench-tracker: setup ## what the page tracker costs, on and off in one server
	ext/test/run --only ../bench/tracker MEASURE=1 18
	ext/test/run --only ../bench/tracker MEASURE=1 15

limits: setup ## every command at the limits: many tables, databases, files, layers; CASES='chain layers' for some, SCALE=10 for a tenth
	@scripts/limits $(CASES)

# A server may be calling the program: it must be there, and whole, at every moment.
define place
install -D target/release/$(1) $(DESTDIR)$(PREFIX)/bin/.$(1).new
mv -f $(DESTDIR)$(PREFIX)/bin/.$(1).new $(DESTDIR)$(PREFIX)/bin/$(1)
endef

# Through sudo it installs what "make build" made: sudo has another PATH, and what root builds is root's.
install: ## build pgstrata and its lab; install them, manual page and completions below PREFIX
	@[ -n "$$SUDO_USER" ] || $(MAKE) --no-print-directory build
	@[ -x target/release/pgstrata-lab ] || { echo 'nothing is built: type "make build" first, without sudo' >&2; exit 1; }
	$(call place,pgstrata)
	$(call place,pgstrata-lab)
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	target/release/pgstrata man >$(DESTDIR)$(PREFIX)/share/man/man1/pgstrata.1
	target/release/pgstrata completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/pgstrata

clean: ## remove what was built and what scripts/setup put here
	cargo clean
	scripts/setup --remove
