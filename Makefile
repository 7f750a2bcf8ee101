# Thin verbs; each is also what CI runs. `make help` lists them.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
BLOCK  ?=
SEED   ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1
unexport PYTHONDONTWRITEBYTECODE  # every simulation starts a Python: without bytecode each would compile all it imports

.DEFAULT_GOAL := help
.PHONY: help setup setup-system sim test test-long formal coverage waves bench lint clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=..."; exit 1; }
	@for t in g++ perl; do command -v $$t >/dev/null || { echo "$$t not found: needed to build simulations (Debian: apt-get install $$t)"; exit 1; }; done
	@echo "setting up $(VENV): pinned packages from pyproject.toml"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --no-compile -e '.[dev,waves]'
	@touch $@

setup: $(STAMP)  ## create .venv with the pinned packages

setup-system:  ## optional Debian packages: four-state simulator, viewer, faster rebuilds, FST waves
	apt-get update -q
	apt-get install -y -q iverilog ccache liblz4-dev zlib1g-dev
	apt-get install -y -q tshark || echo "tshark was not installed; captures are written, and not decoded by tests"
	apt-get install -y -q gtkwave || echo "gtkwave was not installed; waves still open in any FST viewer"

sim: $(STAMP)  ## main job: every block against golden, then the all-reduce (BLOCK=name: one block; dpe, re, sfu, numeric, dma, cp, pe: a unit; engines: the processing element's)
	@$(PY) -m bench.sim $(if $(BLOCK),--block $(BLOCK)) --seed $(SEED) $(if $(filter 1,$(WAVES)),--waves)

test: $(STAMP)  ## fast tier, what CI runs
	@$(PY) -m pytest -rs -n 2 --dist worksteal -m 'not long'

test-long: $(STAMP)  ## long tier
	@$(PY) -m pytest -rs -n 2 --dist worksteal -m long

formal: $(STAMP)  ## proofs: buffers, arbiters, streams (NAME=skid: those whose name begins so)
	@$(PY) -c 'import bitwuzla' 2>/dev/null || { echo "installing the extra formal (solver) into $(VENV)"; $(PY) -m pip install --quiet -e '.[formal]'; }
	@$(PY) -m tests.formal $(NAME)

coverage: $(STAMP)  ## features and bins of every testplan, merged over simulators, of what was run last
	@$(PY) -m tb.report_coverage

waves: $(STAMP)  ## FST, grouped .gtkw and a picture (BLOCK=name of a block or unit; default nmc)
	@$(PY) -m tb.waves --block $(or $(BLOCK),nmc) --seed $(SEED)

bench: $(STAMP)  ## figures: emission, simulation speed; writes build/report/bench.json
	@$(PY) -m bench

lint: $(STAMP)  ## ruff, mypy, import-linter
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

clean:  ## remove build/ (the virtual environment stays)
	rm -rf build
