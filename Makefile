# Everything lives in .venv; `make clean` removes it. PYTHON picks the interpreter that makes it: make demo PYTHON=python3.12
PYTHON ?= python3
VENV   ?= .venv

PIP     := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST  := $(VENV)/bin/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal
INPUTS  := pyproject.toml constraints.txt
PICTURE := assets/desk.png
OBJECT  := banana
RESULT  := desk-detected.png

.PHONY: help demo test test-all lint campaign clean
.DELETE_ON_ERROR:

help:
	@echo "make demo       find every $(OBJECT) in $(PICTURE) and draw the boxes"
	@echo "make test       run the tests of every commit (PYTEST_ARGS='-k crops' picks some)"
	@echo "make test-all   run these and all others: half a million ticks, two thousand requests, browser, packaging"
	@echo "make lint       ruff and mypy"
	@echo "make campaign   abuse servers for hours, and count: bench/results/trust.md (CAMPAIGN_ARGS='--minutes 60')"
	@echo "make clean      remove $(VENV) and everything that was built"

demo: $(VENV)/.installed
	@echo "==> photonlite detect $(PICTURE) $(OBJECT) --plot $(RESULT)"
	@$(VENV)/bin/photonlite detect $(PICTURE) $(OBJECT) --plot $(RESULT)
	@echo "==> the image with its boxes: $(CURDIR)/$(RESULT)"

test: $(VENV)/.installed-test
	@echo "==> running the tests"
	@$(PYTEST) $(PYTEST_ARGS)

test-all: test
	@echo "==> running all other tests"
	@$(PYTEST) -m long $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	@echo "==> ruff"
	@$(VENV)/bin/ruff check .
	@echo "==> mypy"
	@$(VENV)/bin/mypy

campaign: $(VENV)/.installed-test
	@echo "==> running the campaign: it goes on where the last one ended"
	@$(VENV)/bin/python -m bench.campaign $(CAMPAIGN_ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis $(RESULT)
	find photonlite tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "photonlite needs Python 3.11 or newer; try: make PYTHON=python3.12" >&2; exit 1; }
	@echo "==> making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# The stamps make a second run start at once; a change of the project's requirements installs again.
$(VENV)/.installed: $(INPUTS) | $(VENV)/bin/python
	@echo "==> installing photonlite (the first time takes some minutes: torch is large)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	@echo "==> installing the test tools"
	@$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-test
	@echo "==> installing ruff and mypy"
	@$(PIP) --editable '.[test,dev]'
	@touch $@
