# On a fresh machine each target installs what it needs into .venv: `make reproduce` runs the paper's case study, `make test`
# runs the tests.
.DEFAULT_GOAL := help
.PHONY: help install lint types layers unit optimised test docs dist reproduce demo bench-install clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
TESTS := $(VENV)/.installed-test
WORKERS ?= 2
# Programs that run once are compiled quickly, and cached for the next run.
QUICK := JAX_DISABLE_MOST_OPTIMIZATIONS=1 JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.5 JAX_COMPILATION_CACHE_DIR=$(abspath $(VENV))/.jax-cache

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1	/'

# .installed-EXTRA: the package with one of its extras.
$(VENV)/.installed-%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[$*]'
	@touch $@

install: $(TESTS) ## create .venv and install the package with the tools for its tests

reproduce: $(VENV)/.installed-paper ## run the paper's case study on the built-in weather; writes a report
	$(BIN)/ecl2o reproduce

demo: $(VENV)/.installed-serve ## show a policy at work in the browser
	$(BIN)/ecl2o demo --open

lint: $(TESTS) ## check style (ruff)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TESTS) ## check static types (basedpyright); the tests check shapes at run time
	$(BIN)/basedpyright

layers: $(TESTS) ## check that imports point one way
	$(BIN)/lint-imports

# Compiled modules are cached whatever the environment says: pytest runs twice, and its tests start Python many times. Large
# memory pages save a few per cent of the time.
PYTEST := PYTHONDONTWRITEBYTECODE= GLIBC_TUNABLES=glibc.malloc.hugetlb=1 $(BIN)/python -m pytest --dist worksteal
unit: $(TESTS) ## run the tests, except those that `optimised` runs
	$(PYTEST) -n $(WORKERS) -m 'not optimised'

optimised: $(TESTS) ## run promises, oracle and training with the users' compiler settings
	XLA_FLAGS= JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(PYTEST) -n 0 -m optimised $$(grep --recursive --files-with-matches --include='test_*.py' mark.optimised tests)

# Two jobs at a time, in this order: linters use one core while the tests' two workers wait for processes.
test: $(TESTS) ## run everything that CI runs, except the site
	$(MAKE) --no-print-directory --jobs=2 lint layers types unit optimised

docs: $(TESTS) $(VENV)/.installed-site ## build the site into ./site, strictly, and run its tutorials and code blocks
	$(QUICK) NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(QUICK) ECL2O_DOCS=1 $(BIN)/python -m pytest -n 0 -q tests/site

dist: $(TESTS) ## build wheel and sdist, and try them in a new environment
	$(PIP) build
	$(BIN)/python tests/dist/try_dist.py

bench-install: $(TESTS) $(VENV)/.installed-bench ## install what the benchmarks compare with (PyTorch and others)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
