# Needs Python 3.10 or newer with pip, and git. Everything is installed into .venv.
#   make demo    train a ResNet on JPEG files, slow and then fixed, and read why
#   make test    lint, check types, run the tests
#   make lint    ruff and mypy alone
#   make bench   print the tables of benchmarks/ (TRACES="a.json.gz ..." for traces of your own)
#   make clean   remove what these made

PYTHON ?= $(firstword $(foreach name,python3 python3.11 python,$(shell command -v $(name) 2>/dev/null)))
TRACES ?=

VENV := .venv
BIN := $(VENV)/bin
EXAMPLES := $(VENV)/.installed-examples
DEV := $(VENV)/.installed-dev

.PHONY: demo test lint bench clean
.DEFAULT_GOAL := test

demo: $(EXAMPLES)
	@$(BIN)/python examples/quickstart.py --compare

# pytest is last, so that its closing line is too.
test: lint
	@echo "== pytest"
	@$(BIN)/python -m pytest

lint: $(DEV)
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy

bench: $(DEV)
	@$(BIN)/python benchmarks/overhead.py
	@$(BIN)/python benchmarks/speed.py $(TRACES)
	@$(BIN)/python benchmarks/coverage.py $(TRACES)
	@$(BIN)/python benchmarks/compare.py
	@$(if $(TRACES),$(BIN)/python benchmarks/tab.py $(TRACES))

# A stamp says what is installed; a changed pyproject.toml makes it old.
$(VENV)/bin/python:
	@"$(PYTHON)" -c 'import sys; sys.exit("Python %d.%d found; 3.10 or newer is needed: make PYTHON=..." % sys.version_info[:2] if sys.version_info < (3, 10) else 0)'
	@echo "== making $(VENV)"
	@"$(PYTHON)" -m venv $(VENV)

$(EXAMPLES): pyproject.toml | $(VENV)/bin/python
	@echo "== installing the package and its examples (torch is large: this can take minutes)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[examples]'
	@touch $@

# Holds everything that the examples need.
$(DEV): pyproject.toml | $(VENV)/bin/python
	@echo "== installing the package and its tools (torch is large: this can take minutes)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@ $(EXAMPLES)

clean:
	rm -rf $(VENV) build dist demo_data lightning_logs .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
