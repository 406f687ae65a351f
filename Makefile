# Everything lives in .venv; `make clean` removes it. PYTHON picks the interpreter that makes it: make demo PYTHON=python3.12
PYTHON ?= python3
VENV   ?= .venv

# pip would compile what it installs on one core, for more than a minute.
PIP     := $(VENV)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
COMPILE := $(VENV)/bin/python -m compileall -qq -j 0 -x transformers/models $(VENV)/lib
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

# Many of these wait, for servers that come back and trials of some seconds: half as many processes again as cores.
test-all: test
	@echo "==> running all other tests"
	@$(PYTEST) --numprocesses $$(( $$(getconf _NPROCESSORS_ONLN) * 3 / 2 )) -m long $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	@echo "==> ruff"
	@$(VENV)/bin/ruff check .
	@echo "==> mypy"
	@$(VENV)/bin/mypy --num-workers 2

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

# The stamps make a second run start at once; a change of the project's requirements installs again. What installs more
# sets the stamps of what installs less.
$(VENV)/.installed: $(INPUTS) | $(VENV)/bin/python
	@echo "==> installing photonlite (the first time takes some minutes: torch is large)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-test: $(INPUTS) | $(VENV)/bin/python
	@echo "==> installing photonlite and the test tools (the first time takes some minutes: torch is large)"
	@$(PIP) --editable '.[test]'
	@$(COMPILE) || true # some packages hold templates that are no Python
	@touch $(VENV)/.installed $@

$(VENV)/.installed-dev: $(INPUTS) | $(VENV)/bin/python
	@echo "==> installing photonlite, the test tools, ruff and mypy (the first time takes some minutes: torch is large)"
	@$(PIP) --editable '.[test,dev]'
	@$(COMPILE) || true
	@touch $(VENV)/.installed $(VENV)/.installed-test $@
