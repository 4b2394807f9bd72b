# `make test` sets everything up in .venv and checks the project; `make reproduce` runs the paper's case study.
.DEFAULT_GOAL := help
.PHONY: help install lint types layers unit optimised test docs dist reproduce bench-install clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2
# Programs that run once are compiled quickly, and kept for the next time.
QUICK := JAX_DISABLE_MOST_OPTIMIZATIONS=1 JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.5 JAX_COMPILATION_CACHE_DIR=$(abspath $(VENV))/.jax-cache

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1	/'

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@touch $@

install: $(STAMP) ## make the virtual environment .venv and install everything into it

lint: $(STAMP) ## style (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## static types (basedpyright); shapes are checked at run time by the tests
	$(BIN)/basedpyright

layers: $(STAMP) ## imports point one way
	$(BIN)/lint-imports

# Modules are kept compiled, whatever the environment says: pytest runs twice, and its tests start Python many times. What
# compiles needs much memory, which comes in large pages where glibc gives it: a few per cent of the time.
PYTEST := PYTHONDONTWRITEBYTECODE= GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(BIN)/python -m pytest --dist worksteal
unit: $(STAMP) ## the tests alone, but for those that `optimised` runs
	$(PYTEST) -n $(WORKERS) -m 'not optimised'

optimised: $(STAMP) ## promises, oracle and training, compiled as users compile them
	XLA_FLAGS= JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(PYTEST) -n 0 -m optimised $$(grep --recursive --files-with-matches --include='test_*.py' mark.optimised tests)

# Two at a time, in this order: beside the tests' two workers runs what keeps one core busy, and they wait now and then.
test: $(STAMP) ## everything that CI runs
	$(MAKE) --no-print-directory --jobs=2 lint layers types unit optimised

docs: $(STAMP) ## the site in ./site, its tutorials executed; strict
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[site]'
	$(QUICK) NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(QUICK) ECL2O_DOCS=1 $(BIN)/python -m pytest -n 0 -q tests/site

dist: $(STAMP) ## wheel and sdist, tried in a new environment without the repository
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt build
	$(BIN)/python tests/dist/try_dist.py

reproduce: $(STAMP) ## the paper's case study on the built-in weather
	$(BIN)/ecl2o reproduce

bench-install: $(STAMP) ## what the benchmarks compare with (PyTorch and others)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
