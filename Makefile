# Everything here sets itself up. Python 3.11+, Java 17+ and make are all it assumes.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The first interpreter that runs and is new enough; `make PYTHON=...` names another.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# uv comes from the lock like everything else; pip, which every venv has, fetches it. An index set in pip's
# configuration is handed on to uv.
$(READY): requirements.lock pyproject.toml
	@[ -n "$(PYTHON)" ] || { \
	  echo "✗ no Python 3.11 or newer on the PATH. Install one, or name it: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up .venv from requirements.lock (about a minute, once)"
	@$(PYTHON) -m venv --clear .venv
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > .venv/uv.lock
	@$(BIN)/pip --disable-pip-version-check -q install --no-deps --require-hashes -r .venv/uv.lock
	@index=$$($(BIN)/pip config get global.index-url 2>/dev/null || true); \
	  export UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$$index}"; [ -n "$$UV_DEFAULT_INDEX" ] || unset UV_DEFAULT_INDEX; \
	  $(BIN)/uv pip install -q --system-certs --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock; \
	  $(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: setup
setup: $(READY) ## create .venv, fetch the jars, prepare quick starts of Spark
	@$(BIN)/headwater jars

.PHONY: demo
demo: $(READY) ## the whole pipeline on this machine, from Kafka to gold and a docs site
	@$(BIN)/headwater demo

.PHONY: docs
docs: $(READY) ## the dbt docs site as one HTML file
	@$(BIN)/headwater docs

.PHONY: lint
lint: $(READY) ## ruff, mypy, sqlfluff, yamllint and the generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/sqlfluff lint models macros tests/dbt
	@$(BIN)/yamllint --strict .
	@$(BIN)/python -m headwater.reference --check

.PHONY: test
test: setup ## unit and integration tests on one broker and one Thrift server
	@$(BIN)/pytest -m "not slow"

.PHONY: test-slow
test-slow: setup ## the longer cases
	@$(BIN)/pytest -m slow

.PHONY: bench
bench: setup ## measure: cost beside its peers, memory, lag and latency, metadata, increments (about two hours)
	@$(BIN)/python -m benchmarks.ingest
	@$(BIN)/python -m benchmarks.readers
	@$(BIN)/python -m benchmarks.load
	@$(BIN)/python -m benchmarks.metadata
	@$(BIN)/python -m benchmarks.increments

.PHONY: lock
lock: $(READY) ## renew requirements.lock from pyproject.toml
	@$(BIN)/uv pip compile -q --system-certs --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-strip-extras --extra dev pyproject.toml -o requirements.lock

.PHONY: clean
clean: ## stop the local stack and delete its state, data included
	@[ ! -x $(BIN)/headwater ] || $(BIN)/headwater down
	rm -rf .headwater target logs
