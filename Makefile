# Everything here needs Python >= 3.11 and make; the rest is installed into $(VENV).
#   make test PYTHON=python3.13     another interpreter, in an environment of its own
#   make test ARGS="-k redis -x"    arguments for pytest (bench: for the benchmark, demo: for the demo)
#   make prove LONG=1 ARGS="--json proof.json --seed 7"
#   make mutants N=30 SEED=7 ARGS="--rooms inbox relay --json mutants.json"

PYTHON ?= python3
ARGS ?=
# Test processes side by side, which share the servers: more than two cores have, since most tests wait for something.
JOBS ?= 4
# What `make test-all NEXT=1` runs on newer servers, in both tiers.
ON_NEWER_SERVERS := tests/backends tests/worker tests/dead_letters tests/inbox tests/outbox tests/relay tests/intents tests/sagas
# What is compiled once need not be compiled by every process that the tests start.
unexport PYTHONDONTWRITEBYTECODE

ifeq ($(origin PYTHON),file)
VENV := .venv
else
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
endif

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
INPUTS := pyproject.toml lint/pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-all prove mutants check format bench docs pictures release servers constraints clean

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F '\t' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: $(VENV)/.core ## One payment, delivered twice, charged once
	@$(BIN)/effectonce demo $(ARGS)

test: $(VENV)/.dev ## Every promise once, against real servers where they are installed
	$(BIN)/python -m pytest -n $(JOBS) --dist=worksteal -m "not long" $(ARGS)

test-all: $(VENV)/.dev ## The rest: soaks, the whole explorer, every store and driver (NEXT=1: stores and brokers on newer servers)
	$(if $(NEXT),EFFECTONCE_TEST_NEXT=1) $(BIN)/python -m pytest -n $(JOBS) --dist=worksteal \
	  $(if $(NEXT),$(ON_NEWER_SERVERS),-m long) $(ARGS)

prove: $(VENV)/.dev ## Kill it for ten minutes and count (LONG=1: an hour; SECONDS=60: a minute)
	$(BIN)/python -m tests.proof.prove --seconds $(or $(SECONDS),$(if $(LONG),3600,600)) $(ARGS)

mutants: $(VENV)/.dev ## Do the tests near the code notice N=200 random changes of it (SEED=7: the same ones again)
	$(BIN)/python -m tests.proof.sampled_mutants -n $(or $(N),200) $(if $(SEED),--seed $(SEED)) $(ARGS)

check: $(VENV)/.dev ## Lint, formatting, types and prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.docs.prose

format: $(VENV)/.dev ## Rewrite the code as `make check` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench ## The guard beside the raw drivers and its peers
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(VENV)/.docs ## The documentation, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

release: $(VENV)/.release ## Build both distributions into dist/, check them, and try them in an empty environment
	rm -rf dist .venv-empty
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist lint
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv .venv-empty
	.venv-empty/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd .venv-empty && bin/effectonce demo && bin/effectonce-lint --version
	rm -rf .venv-empty
	cd dist && sha256sum -- *.whl *.tar.gz > SHA256SUMS && cat SHA256SUMS

pictures: $(VENV)/.dev ## Draw the documentation's diagrams, recording and screenshots anew
	[ -e $(VENV)/node_modules/mermaid ] || npm install --no-save --no-audit --no-fund --prefix $(VENV) mermaid@11.12.1
	$(BIN)/python docs/hooks/diagrams.py
	$(BIN)/python -m tests.demo.recording docs/images/demo.svg
	$(BIN)/python -m tests.dashboard.pictures docs/images

servers: ## Install the servers that the tests run against (NEXT=1: newer ones beside them, 1.5 GB)
	@tests/harness/install.sh
	@$(if $(NEXT),tests/harness/install_next.sh)

constraints: | $(VENV)/.python ## Pin anew: the newest versions of everything
	rm -rf $(VENV)-pin
	$(PYTHON) -m venv $(VENV)-pin
	$(VENV)-pin/bin/python -m pip install --quiet --disable-pip-version-check ./lint '.[dev,bench,docs,release]'
	{ echo '# Exact versions that everything here is tested with, on Python 3.11, 3.12 and 3.13.'; \
	  echo '# Written by `make constraints`; never edited by hand.'; \
	  $(VENV)-pin/bin/python -m pip freeze --exclude effectonce --exclude effectonce-lint | grep -v ' @ ' | LC_ALL=C sort -f; } > constraints.txt
	rm -rf $(VENV)-pin

clean: ## Remove every environment and everything built
	rm -rf .venv .venv-* .servers build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .mutants_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'effectonce needs Python >= 3.11, and "$(PYTHON)" is not one; name another: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo 'could not make $(VENV); on Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }
	@touch $@

$(VENV)/.core: $(INPUTS) | $(VENV)/.python
	@$(INSTALL) -e ./lint -e .
	@touch $@

$(VENV)/.dev: $(INPUTS) | $(VENV)/.python
	@$(INSTALL) -e ./lint -e '.[dev]'
	@touch $(VENV)/.core $@

$(VENV)/.bench: $(INPUTS) | $(VENV)/.python
	@$(INSTALL) -e ./lint -e '.[dev,bench]'
	@touch $(VENV)/.core $(VENV)/.dev $@

$(VENV)/.release: $(INPUTS) | $(VENV)/.python
	@$(INSTALL) -e ./lint -e '.[release]'
	@touch $(VENV)/.core $@

$(VENV)/.docs: $(INPUTS) | $(VENV)/.python
	@$(INSTALL) -e ./lint -e '.[docs]'
	@touch $(VENV)/.core $@
