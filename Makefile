# Every target makes the virtual environment it needs. PYTHON chooses the interpreter (3.11 to 3.13).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Threads that spin for long slow every process on a shared machine; `headrace` sets the same for itself.
export GOMP_SPINCOUNT ?= 3000

.PHONY: setup demo demo-en test slow check bench lines

setup: $(VENV)/.done

$(VENV)/.done: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/python scripts/fetch_demo_text.py ja
	$(BIN)/headrace run configs/demo-ja.yaml

demo-en: setup
	$(BIN)/python scripts/fetch_demo_text.py en
	$(BIN)/headrace run configs/demo-en.yaml

test: setup
	$(BIN)/python -m pytest

slow: setup
	$(BIN)/python -m pytest -m slow

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: setup
	$(BIN)/python benchmarks/prepare.py
	$(BIN)/python benchmarks/pretraining.py --model mini

lines:
	@for d in headrace headrace/*/ tests benchmarks; do printf '%6d %s\n' $$(cat $$d/*.py | wc -l) $$d; done
