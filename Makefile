# The commands of this project. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo dev test sim check build deploy bench clean

ENV := . scripts/env.sh &&

help: ## Lists these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: ## Installs the tools, once (the other commands do it too)
	@scripts/setup.sh

demo: build ## Runs an agent, kills it in the middle, and shows it finish
	@$(ENV) exec node scripts/demo.mjs

dev: build ## Serves on http://127.0.0.1:8787 (PORT=, STATE_DIR=, and each variable of the Worker)
	@$(ENV) exec node scripts/dev.mjs

test: setup ## Everything that must pass: lints, tests, simulation, builds, end to end
	@$(ENV) exec node scripts/test.mjs

check: setup ## The quick part of `test`: format, lints, tests on the host
	@$(ENV) exec node scripts/test.mjs check

sim: setup ## The simulation alone, with its coverage table, and the sabotages it must notice
	@$(ENV) cargo test --test sim -- --nocapture
	@$(ENV) RUSTFLAGS='--cfg agentdo_sabotage' CARGO_TARGET_DIR=target/sabotage cargo test --lib --test sim sabotage

build: setup ## Builds the Worker into build/ and prints its sizes
	@scripts/build.sh
	@$(ENV) node scripts/size.mjs

deploy: build ## Applies the D1 migrations and deploys to your account
	@$(ENV) wrangler d1 migrations apply agentdo --remote
	@$(ENV) AGENTDO_SKIP_BUILD=1 wrangler deploy

bench: build ## Measures rows, CPU, sizes and recovery beside their marks
	@$(ENV) exec node scripts/bench.mjs

clean: ## Removes what was built, and local state
	rm -rf target build examples/*/build tests/*/build .wrangler
