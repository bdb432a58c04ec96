# Every target builds the virtual environment it needs when that is missing or out of date; versions
# are those of constraints.txt. TORCH=2.15 takes another torch, PYTHON=/path/to/python3.13 another
# Python; each has an environment of its own.
#   make demo    bundled models exported and run; fake tensors and symbolic sizes
#   make test    lint, format, types, tests: what CI runs
#   make consumers  of these tests the programs in other people's runtimes, and more of them
#   make test-gpu  the tests that need a CUDA device
#   make test-core  of these tests what says most, for another torch: make test-core TORCH=2.11
#   make bench   ours beside torch's, with the bars; nonzero when one is missed
#   make bench-cold  first exports, ours beside torch's, each in a fresh process; takes an hour
#   make sweep   timm and transformers architectures exported and compared with eager; then from
#                tensors on cuda, which need not be there
#   make fuzz    all samples and seeds of which `make test` tries some; then random programs through
#                every way, compared with eager; COUNT=20000 SEED=0
#   make site    the documentation as a site: build/site/index.html
#   make run-wheel  the wheel of lostwax-run, in dist/; needs a C++ compiler
#   make index   rewrite the index of operators and the page of errors
#   make explorer  rebuild the page of lostwax.explore after a change in explorer/; needs node and npm
#   make lock    rewrite constraints.txt with the registry's newest versions
#   make fresh   demo and tests in empty Debian 12 and 13 roots (as root; needs debootstrap)

PYTHON ?= python3
TORCH ?=
ifneq ($(PYTHON),python3)
OF_PYTHON := -python$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
endif
VENV ?= .venv$(TORCH:%=-torch%)$(OF_PYTHON)
BIN := $(VENV)/bin
BASE := $(VENV)/.installed
STAMP := $(VENV)/.installed-test
SWEEP_STAMP := $(VENV)/.installed-sweep
SITE_STAMP := $(VENV)/.installed-site
CONSUMERS_STAMP := $(VENV)/.installed-consumers
# Two processes of one thread each, for two cores; the tests of a file stay together, with what they
# share, until a process has none left. Tests start hundreds of processes, each of which would
# compile the package where Python keeps nothing (PYTHONDONTWRITEBYTECODE): it is compiled before.
PYTEST := $(BIN)/python -m compileall -q lostwax run && \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

.PHONY: run-wheel site demo test consumers test-core test-gpu bench bench-cold sweep fuzz venv lint types format index explorer lock fresh clean

demo: $(BASE)
	$(BIN)/python -m examples.demo

test: lint types $(CONSUMERS_STAMP) $(SITE_STAMP)
	$(PYTEST) tests

consumers: $(CONSUMERS_STAMP)
	WHOLE=1 $(PYTEST) tests/consumers

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -q -m gpu tests

# Without lint and types: they are of the default environment. What is core stands in tests/conftest.py.
test-core: $(STAMP)
	$(PYTEST) -m core tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Each benchmark runs alone and all of them run, also after one has missed its bar.
bench: $(STAMP)
	@failed=0; for script in sym fake memory depth export_speed guards decompose passes archive lowering delegates strict handover run; do \
	    echo "== bench/$$script.py"; $(BIN)/python -m bench.$$script || failed=1; \
	done; exit $$failed

# Its models are those of other people's libraries too, and each figure has a process of its own.
bench-cold: $(SWEEP_STAMP)
	$(BIN)/python -m bench.cold

sweep: $(SWEEP_STAMP)
	$(BIN)/python -m sweep
	$(BIN)/python -m sweep.fakes

COUNT ?= 20000
SEED ?= 0
fuzz: $(STAMP)
	WHOLE=1 $(PYTEST) $$(grep -rl --include='test_*.py' 'from tests.whole import' tests)
	$(BIN)/python -m fuzz --count $(COUNT) --seed $(SEED) --jobs 2 --minimize

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: $(STAMP)

# The page of `lostwax.explore`, of its sources in explorer/: needs node and npm, which nothing else does.
explorer:
	cd explorer && npm ci --no-audit --no-fund && npm run build

run-wheel: $(BASE)
	$(BIN)/python -m pip wheel -q --no-deps -w dist ./run

site: $(SITE_STAMP)
	$(BIN)/python .ci/site

index: $(STAMP)
	$(BIN)/python -m tests.ops.index
	$(BIN)/python -m tests.error_page

lock: $(STAMP)
	$(BIN)/python .ci/lock

fresh:
	.ci/fresh bookworm
	.ci/fresh trixie

$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "lostwax needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@TORCH=$(TORCH) .ci/install $(BIN)/python
	@touch $@

$(STAMP): $(BASE)
	@TORCH=$(TORCH) .ci/install $(BIN)/python test
	@touch $@

# Other people's runtimes, for the tests that run programs in them.
$(CONSUMERS_STAMP): $(STAMP)
	@TORCH=$(TORCH) .ci/install $(BIN)/python consumers
	@touch $@

$(SITE_STAMP): $(STAMP)
	@TORCH=$(TORCH) .ci/install $(BIN)/python site
	@touch $@

# Other people's libraries, for the sweep alone.
$(SWEEP_STAMP): $(STAMP)
	@TORCH=$(TORCH) .ci/install $(BIN)/python sweep
	@touch $@

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find lostwax tests bench examples sweep fuzz -name __pycache__ -type d -prune -exec rm -rf {} +
