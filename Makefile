# The targets for developers. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup setup-core setup-test setup-demo setup-spark setup-docs compile check quick changed test test-interop test-all test-lowest bench bench-client bench-spark docs docs-site generate demo pipeline-demo clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 18

setup: compile ## create .venv with the tools and test packages, without Spark, and compile

setup-core:
	@$(PYTHON) make_venv.py core

setup-test:
	@$(PYTHON) make_venv.py test

setup-demo: setup-core
	@PYTHONPATH="$(CURDIR)/src" $(BIN)/python -m cometmq.spark.java
	@$(PYTHON) make_venv.py demo

setup-spark: ## add what the Spark tests need to .venv; safe while other tests run
	@$(PYTHON) make_venv.py spark

setup-docs:
	@$(PYTHON) make_venv.py docs

compile: setup-test ## compile the hot modules in place (without a C compiler they stay interpreted)
	@$(BIN)/python build_ext.py

check: setup-spark ## formatting, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

quick: compile ## the unit tests without Spark on the compiled build, in less than a minute
	@$(BIN)/python tests/run.py --tier quick

changed: compile ## the tests of what differs from the last commit, or from SINCE=COMMIT
	@$(BIN)/python tests/run.py --changed $(or $(SINCE),HEAD)

test: compile ## every promise on our own servers, in ten minutes; needs Python and a C compiler
	@$(BIN)/python tests/run.py

test-interop: compile ## real RocketMQ brokers, tools and clients; needs a JDK 17, Maven, Go and Node.js
	@$(BIN)/python tests/run.py --tier interop

test-all: compile ## everything: every test on every cluster and build, long random rounds
	@$(BIN)/python tests/run.py --tier all
	@$(BIN)/python tools/lowest.py

test-lowest: setup-test ## the lowest versions that pyproject.toml promises, on the oldest Python, in a place of their own
	@$(BIN)/python tools/lowest.py

bench: compile ## compare with other brokers, an hour: BENCH='--quick' for a few minutes, '--help' for more
	@$(BIN)/python benchmarks/run.py $(BENCH)

bench-client: compile ## compare the client with Java's, nats-py and C++'s: BENCH='--quick' for less
	@$(BIN)/python benchmarks/client.py $(BENCH)

bench-spark: compile setup-spark ## compare the Spark formats with Spark's Parquet source: BENCH='--quick' for less
	@$(BIN)/python benchmarks/spark.py $(BENCH)

docs: compile setup-spark ## check links and generated pages, run the examples without Spark
	@$(BIN)/python -m pytest -q tests/unit/docs tests/integration/test_docs.py

docs-site: setup-docs ## the pages as a site with search, in build/site; a link to nothing or an unlisted page fails
	@$(BIN)/python -m sphinx --quiet -W --keep-going -E -j auto -d build/site-cache docs build/site
	@echo "docs-site: open build/site/index.html"

generate: compile ## write the files that follow from the code: reference pages, conf, the blocking client, dashboards
	@$(BIN)/python -m tools.generate

demo: setup-core ## send, receive, kill the server with SIGKILL, lose nothing; needs no compiler
	@$(BIN)/python build_ext.py --prune
	@PYTHONPATH="$(CURDIR)/src" $(BIN)/python -m cometmq demo
	@test -x $(BIN)/cometmq || echo "next: 'make setup' installs CometMQ into .venv; docs/howto/install.md shows other ways"

pipeline-demo: setup-demo ## live totals, an archive, dead letters and an audit on local Spark (needs Java 17)
	@$(BIN)/python build_ext.py --prune
	@PYTHONPATH="$(CURDIR)/src" $(BIN)/python examples/spark/pipeline_demo.py --folder build/pipeline-demo

clean: ## remove what the other targets made, except .venv
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src \( -name '*.so' -o -name '*.c' \) -delete
