# Everything sets up what it needs by itself: `make demo` and `make test` work on a fresh clone.
# On Debian and Ubuntu Slurm is installed by apt (as root) or unpacked into a cache (otherwise); elsewhere a Slurm on
# PATH is used.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The CPU build of PyTorch where pip has a choice, as by PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu: PyPI has
# none but that with CUDA. A site with GPUs installs its own.
TORCH ?= torch==2.13.0
STAMP := $(VENV)/.installed

RUN := $(BIN)/python -m
# Tests start hundreds of Pythons, and each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

RELEASES := test-22.05 test-24.11 test-26.05
.PHONY: help install demo check quick test thorough suites gpu test-deb $(RELEASES) lint docs bench chaos attack scripts fuzz man deb clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-zA-Z0-9. -]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv and install the project into it

$(STAMP): setup.cfg pyproject.toml
	@PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH="$(TORCH)" sh tools/install.sh
	@touch $@

demo: $(STAMP) ## 14 training jobs on a private Slurm cluster: stock Slurm, then Hadar (about 9 minutes)
	$(BIN)/python -m examples.demo

check: ## lint, types, and the tests that are quick and need no Slurm, no PyTorch and no browser (5 minutes on 2 cores)
	@$(MAKE) --no-print-directory --jobs=2 lint quick

# beside lint, since mypy takes one core for half a minute where it has no cache; a worker more than cores, since some
# tests wait
quick: $(STAMP)
	@HYPOTHESIS_PROFILE=quick $(RUN) pytest -m "not slurm and not torch and not built and not thorough" -n $$(($$(nproc) + 1)) --dist worksteal -q $(PYTEST_ARGS)

test: ## check, and what needs PyTorch, a browser and private Slurm clusters (25 to 35 minutes on 2 cores)
	@HYPOTHESIS_PROFILE=quick $(MAKE) --no-print-directory --jobs=2 lint suites

thorough: ## test, with all drawn examples, and what repeats much for little (an hour on 2 cores)
	@$(MAKE) --no-print-directory --jobs=2 lint suites SUITES=--thorough

suites: $(STAMP)
	@mkdir -p build/coverage && rm -f build/coverage/*
	@$(RUN) tools.suites $(SUITES) $(PYTEST_ARGS)
	@$(BIN)/coverage combine -q && $(BIN)/coverage report

# Exit code 77 of the script: that release cannot be had here, which it has said.
test-24.11: ## the end-to-end tests on that release of Slurm; also test-22.05, test-26.05 (root, Debian's mirror)
$(RELEASES): test-%: $(STAMP)
	@if tools/slurm_suite.sh $* true; then $(RUN) tools.suites --thorough --only live --by "tools/slurm_suite.sh $*" $(PYTEST_ARGS); \
	elif [ $$? -ne 77 ]; then exit 1; fi

gpu: $(STAMP) ## what only an NVIDIA GPU can show (.venv needs a PyTorch that has CUDA)
	$(RUN) pytest tests/gpu -n 4 --dist worksteal $(PYTEST_ARGS)

test-deb: $(STAMP) ## install the Debian package and run the containers' files in a fresh Debian (root, Debian's mirror)
	HADAR_TEST_DEB=1 $(BIN)/python -m pytest tests/package $(PYTEST_ARGS)

lint: $(STAMP) ## ruff, mypy, and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP) ## the documentation as web pages, build/docs/index.html; warnings are errors
	$(BIN)/python -m sphinx -b html -n -W --keep-going -q docs build/docs
	@echo "written: build/docs/index.html"

bench: $(STAMP) ## measure: rounds at 1,000 and 5,000 jobs, move latency, cost of the hooks
	$(BIN)/python -m benchmarks

# one episode again: make chaos SEED=17; many: make chaos MINUTES=60
SEED ?= 1
MINUTES ?= 0
chaos: $(STAMP) ## break a real controller on a real private Slurm on purpose, and check what must hold (about 4 minutes)
	$(BIN)/python -m benchmarks.chaos --seed $(SEED) $(if $(filter 0,$(MINUTES)),--episodes 1,--minutes $(MINUTES))

attack: $(STAMP) ## hostile users on a real private Slurm with limits, beside honest ones (about 4 minutes; root)
	$(BIN)/python -m benchmarks.attack --seed $(SEED) $(if $(filter 0,$(MINUTES)),--episodes 1,--minutes $(MINUTES))

MOVES ?= 3
scripts: $(STAMP) ## training scripts in many people's habits, each moved MOVES times at random moments by a real controller
	HADAR_TEST_MOVES=$(MOVES) HADAR_TEST_SEED=$(SEED) $(BIN)/python -m pytest -m slurm tests/scripts $(PYTEST_ARGS)

FUZZ_SECONDS ?= 60
FUZZ_ROUNDS ?= 10000
fuzz: $(STAMP) ## feed every parser mutations of real samples, and whole rounds hostile queues: only clear errors may come
	$(BIN)/python -m benchmarks.fuzz --seconds $(FUZZ_SECONDS)
	$(BIN)/python -m benchmarks.fuzz.rounds --rounds $(FUZZ_ROUNDS)

man: $(STAMP) ## man pages, into build/man
	$(BIN)/python -m tools.package man build/man

deb: $(STAMP) ## Debian package of the controller for this machine's Python, into dist (no root, no download)
	$(BIN)/python -m tools.package deb dist

clean: ## remove what was built here
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .ruff_cache .mypy_cache .import_linter_cache
