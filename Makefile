# Every target builds the virtual environment when it is missing or older than pyproject.toml.
#   make demo    bundled models exported and run; fake tensors and symbolic sizes
#   make test    lint, format, types, tests: what CI runs
#   make bench   ours beside torch's, with the bars; nonzero when one is missed
#   make sweep   timm and transformers architectures exported and compared with eager

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SWEEP_STAMP := $(VENV)/.installed-sweep

.PHONY: demo test bench sweep venv lint types format clean

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
	@failed=0; for script in sym fake memory depth export_speed guards decompose passes archive; do \
	    echo "== bench/$$script.py"; $(BIN)/python -m bench.$$script || failed=1; \
	done; exit $$failed

sweep: $(SWEEP_STAMP)
	$(BIN)/python -m sweep

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

# Other people's libraries, for the sweep alone; the bound on torch is lostwax's own.
$(SWEEP_STAMP): $(STAMP)
	$(BIN)/pip install --quiet -e ".[sweep]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find lostwax tests bench examples sweep -name __pycache__ -type d -prune -exec rm -rf {} +
