# Two commands for a newcomer: `make run` and `make test`. Each sets up what it needs, once; with everything in place
# nothing is installed and no network is used. Steps that are done leave a file in .venv/done.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: run test check bench clean help

BIN  := .venv/bin
DONE := .venv/done
# What plait._native and the installed package are made of. Python files are used in place.
PARTS := pyproject.toml CMakeLists.txt scripts/plait_backend.py $(shell find csrc -type f)
# Empty where there is none: Plait is then installed without plait._native, and anew once there is a compiler.
COMPILER := $(shell scripts/compiler)

export PYTHON

run: $(DONE)/plait ## set up, then answer the prompts of examples/first_light.jsonl and compare with the committed answers
	@mkdir -p out
	@$(BIN)/plait batch -i examples/first_light.jsonl -o out/first_light.jsonl
	@$(BIN)/python scripts/compare-answers examples/first_light.expected.jsonl out/first_light.jsonl

test: $(DONE)/dev $(DONE)/plait ## set up, then run the C++ and the Python tests
	@scripts/cpp-test
	@$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

check: $(DONE)/dev $(DONE)/plait ## set up, then check format, lint, types, architecture and budgets
	@scripts/check

bench: $(DONE)/plait ## set up, then list the benchmarks and run each one briefly
	@scripts/bench

clean: ## remove everything that the other targets made, the environment too
	rm -rf .venv .venv-release build dist out .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | while IFS='	' read -r name text; do printf '  make %-7s %s\n' "$$name" "$$text"; done

$(DONE)/venv:
	@scripts/setup venv
	@mkdir -p $(DONE) && touch $@

$(DONE)/build: requirements-build.lock | $(DONE)/venv
	@scripts/setup build
	@touch $@

$(DONE)/runtime: requirements.lock | $(DONE)/venv
	@scripts/setup runtime
	@touch $@

$(DONE)/dev: requirements-dev.lock $(DONE)/runtime
	@scripts/setup dev
	@touch $@

$(DONE)/plait: $(PARTS) $(DONE)/build $(DONE)/runtime $(if $(COMPILER),$(DONE)/compiler)
	@scripts/setup plait
	@$(if $(COMPILER),,rm -f $(DONE)/compiler)
	@touch $@

$(DONE)/compiler: | $(DONE)/venv
	@touch $@
