# Two commands to know: `make test` and `make demo`. Each sets up all it needs (Python 3.11 or newer with pip, make).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
QUESTION := How can I write a Python function that counts the vowels in a text?

.PHONY: test demo lint clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Draftwing needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

test: lint
	$(BIN)/pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One prompt both ways in float32, the texts compared byte for byte; then a short bench in the machine's best dtype.
demo: $(READY)
	mkdir -p runs
	@echo "== without speculation (float32)"
	$(BIN)/draftwing generate "$(QUESTION)" --dtype float32 --max-new-tokens 120 --plain | tee runs/demo-plain.txt
	@echo "== with a drafter and lookup (float32)"
	$(BIN)/draftwing generate "$(QUESTION)" --dtype float32 --max-new-tokens 120 | tee runs/demo-speculative.txt
	cmp runs/demo-plain.txt runs/demo-speculative.txt && echo "== the two answers are the same, byte for byte"
	$(BIN)/draftwing bench --prompts humaneval --split all --limit 12 --max-new-tokens 128 --record runs/demo-bench.json

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
