# Development tasks; `make` lists them. GNU make 4 and Python 3.10 or newer.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# More arguments for pytest: make test PYTEST_ARGS="-m slow --timeout=0"
PYTEST_ARGS ?=
# How often: make test-busy N=10
N ?= 3
# Which benchmarks to run: make bench BENCH=benchmarks/convergence.py
BENCH ?= $(sort $(wildcard benchmarks/[!_]*.py))

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-all test-light test-busy lint format bench results docs dist clean

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv and install mirrorshot with its tools

# Installs again only when the dependencies or the sources in C++ change; the package is installed in editable mode.
$(STAMP): pyproject.toml constraints.txt hatch_build.py $(wildcard src/mirrorshot/softmax/native/*.?pp)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(STAMP) ## Train two methods, test them on handwritten digits, write a report
	$(BIN)/mirrorshot demo

# Two workers with one thread each: tensors are small, and threads of two processes would fight for cores.
# MIRRORSHOT_DATA (a folder of benchmark data; without it those tests are skipped) is inherited.
PYTEST := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n 2

test: $(STAMP) ## Run the tests and the examples in the docstrings
	@$(PYTEST) $(PYTEST_ARGS)

test-all: $(STAMP) ## The same with the tests marked long, and those in a browser
	@$(PYTEST) -m "not slow" $(PYTEST_ARGS)

# The package as users get it: a wheel, not editable, without torch. Test files that need torch are left out.
LIGHT       := .venv-light
LIGHT_TESTS := $(addprefix tests/,softmax gp classifier metrics files encoders tool cli views \
               serve/test_api.py serve/test_command.py serve/test_users.py)

$(LIGHT)/.installed: pyproject.toml constraints.txt
	test -x $(LIGHT)/bin/python || $(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/python -m pip install --quiet -c constraints.txt ".[onnx,serve,plot,test]"
	@touch $@

test-light: $(LIGHT)/.installed ## Run the tests of models in an environment without torch
	@$(LIGHT)/bin/python -m pip install --quiet --no-deps --force-reinstall .
	@! $(LIGHT)/bin/python -c "import torch" 2>/dev/null || { echo "torch is in $(LIGHT)"; exit 1; }
	@OMP_NUM_THREADS=1 $(LIGHT)/bin/python -m pytest -n 2 $(LIGHT_TESTS) --ignore=tests/classifier/test_without_torch.py $(PYTEST_ARGS)

test-busy: $(STAMP) ## Run the tests N times on a machine that is busy with other things
	@PYTHON=$(BIN)/python scripts/busy_tests.sh $(N) $(PYTEST_ARGS)

lint: $(STAMP) ## Check style, formatting, types and spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/codespell

format: $(STAMP) ## Format the code and apply the safe fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP) ## Run the benchmarks (BENCH=file for one)
	@set -e; for script in $(BENCH); do echo "== $$script"; $(BIN)/python "$$script"; done

results: $(STAMP) ## Write docs/results.md and docs/results_details.md from the results that exist
	$(BIN)/mirrorshot reproduce tables

# NO_MKDOCS_2_WARNING: the theme's notice about its successor is not a message about these pages.
docs: $(STAMP) ## Build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html"

# The wheel is installed in an empty environment, away from the sources.
dist: $(STAMP) ## Build sdist and wheel into dist/, check them, and try the wheel
	rm -rf dist build/try
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/try
	build/try/bin/python -m pip install --quiet -c constraints.txt dist/*.whl
	cd build/try && bin/python -W error -c "from mirrorshot import FewShotClassifier; print(FewShotClassifier())"
	cd build/try && bin/mirrorshot --help > help.txt
	@ls -l dist

clean: ## Remove caches and build outputs; .venv stays
	rm -rf build dist htmlcov .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf demo-output reproduction site src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
