# Everything a developer does, one word each. `make help` lists the words.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup compile check test bench bench-spark docs demo pipeline-demo soak clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 18

setup: compile ## create .venv with everything the other targets need, and compile

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	COMETMQ_BUILD=interpreted $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[build,check,test,tls,uvloop]'
	@touch $(READY)

compile: $(READY) ## compile the hot modules in place (without a C compiler they stay interpreted)
	@$(BIN)/python build_ext.py

check: $(READY) ## formatting, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: compile ## every test, on the compiled and the interpreted build
	@$(BIN)/python tests/run.py

soak: compile ## the long rounds: kills, mutated frames, churning consumers, killed Spark drivers
	@COMETMQ_ROUNDS=soak $(BIN)/python tests/run.py faults client spark

bench: compile ## compare with Java brokers side by side: BENCH='--quick' for three minutes
	@$(BIN)/python benchmarks/run.py $(BENCH)

bench-spark: compile ## the data sources beside Spark's own Parquet source: BENCH='--quick' for less
	@$(BIN)/python benchmarks/spark.py $(BENCH)

docs: compile ## check links, run the examples and the snippets of the documentation
	@$(BIN)/python -m pytest -q tests/unit/docs tests/integration/test_docs.py

demo: compile ## start a name server and a broker, send and receive, show what happens
	@$(BIN)/cometmq demo

pipeline-demo: compile ## orders in a topic, read, archived and audited by local Spark (needs Java 17)
	@$(BIN)/cometmq pipeline-demo --folder build/pipeline-demo

clean: ## remove what the other targets made, but not .venv
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src \( -name '*.so' -o -name '*.c' \) -delete
