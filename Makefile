# Everything a person types. What takes more than a line lives in scripts/.

PREFIX ?= /usr/local

# Programs that scripts/setup installed for this checkout.
export PATH := $(CURDIR)/.deps/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup demo test torture check bench install clean

help: ## say what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install what building, testing and trying needs
	@scripts/setup

demo: setup ## full backup, load, incrementals, point-in-time restore, proof
	@test -x scripts/demo || { echo "make demo: scripts/demo is not written yet" >&2; exit 1; }
	@scripts/demo

test: setup ## all tests, against real PostgreSQL and a real S3 server
	cargo test --locked --workspace --doc --quiet
	cargo nextest run --locked --workspace $(TESTS)
	ext/model/check
	ext/test/run 15 18

torture: setup ## page tracker under kills and restarts, half an hour each server
	ext/test/run --only torture --long 15 16 17 18

check: setup ## formatting, lints, documentation, house rules
	scripts/check

bench: setup ## speed and memory as ratios, measured in one run
	@test -x scripts/bench || { echo "make bench: scripts/bench is not written yet" >&2; exit 1; }
	@scripts/bench

install: ## build pgstrata and install it below PREFIX
	cargo build --locked --release --package pgstrata
	install -D target/release/pgstrata $(DESTDIR)$(PREFIX)/bin/pgstrata

clean: ## remove what was built and what scripts/setup put here
	cargo clean
	scripts/setup --remove
