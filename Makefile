# fedbench: one command per habit. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format bench gpu-check chaos reproduce-tables report clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F '\t' '{printf "  make %-18s %s\n", $$1, $$2}'

install: $(READY)  ## create the environment in .venv and install fedbench into it

# $(READY) is a copy of what was installed: a file that is only newer, as after a checkout, installs nothing.
$(READY): pyproject.toml
	@if cmp -s pyproject.toml $(READY); then touch $(READY); else set -e -x; \
	$(PYTHON) -m venv $(VENV); \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'; \
	cp pyproject.toml $(READY); fi

demo: install  ## run the main job on the embedded digits: FedAvg, 10 clients, Dirichlet 0.5
	$(BIN)/fedbench

test: install  ## run the tests but the long ones, `pytest -m heavy` (real-data tests join in when FEDBENCH_DATA points to the datasets)
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: install  ## check style and types, and ask for known vulnerabilities of the installed packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/audit.py

format: install  ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install  ## measure the engine against a bare PyTorch loop, interleaved, as ratios
	$(BIN)/python scripts/bench.py

gpu-check: install  ## try on a GPU what could not be tried without one; about twenty minutes
	$(BIN)/python scripts/gpu_check.py

COUNT ?= 100
SEED ?= 0
chaos: install  ## plant random faults in small runs (COUNT=100, SEED=0): every run must survive, to the bit
	$(BIN)/python scripts/chaos.py $(COUNT) --seed $(SEED)

SCALE ?= smoke
reproduce-tables: install  ## run what is missing of the papers' tables and figures, and render all (SCALE=smoke|decisive|paper, ONLY=fedpgvc/table2)
	$(BIN)/fedbench-tables run --scale $(SCALE) $(if $(ONLY),--only $(ONLY)) $(ARGS)

report: install  ## render all results, those of the archive too, without running anything: results/report/index.html
	$(BIN)/fedbench-tables render results

clean:  ## remove the environment and caches (results stay)
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
