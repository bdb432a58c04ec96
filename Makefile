# Every target builds the virtual environment when it is missing or older than pyproject.toml.
#   make demo    fake tensors and symbolic sizes, shown on bundled models
#   make test    lint, format, types, tests: what CI runs
#   make bench   ours beside torch's, with the bars; nonzero when one is missed

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test bench venv lint types format clean

demo: $(STAMP)
	$(BIN)/python -m examples.demo

test: lint types
	$(BIN)/python -m pytest -n 2 -q tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy lostwax

# Each benchmark runs alone and all of them run, also after one has missed its bar.
bench: $(STAMP)
	@failed=0; for script in sym fake memory; do \
	    echo "== bench/$$script.py"; $(BIN)/python -m bench.$$script || failed=1; \
	done; exit $$failed

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: $(STAMP)

# torch first and bounded: an unbounded torch brings gigabytes of CUDA with it.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "lostwax needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "torch>=2.11,<2.14"
	$(BIN)/pip install --quiet -e ".[test]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find lostwax tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
