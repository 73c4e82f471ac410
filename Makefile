# Two commands on a fresh machine: `make verify` and `make test`. Each sets up .venv first, once.
# They need make and Python >= 3.11; PYTHON=/path/to/python chooses another one.

PYTHONS := $(or $(PYTHON),python3 python3.11 python3.12 python3.13)
IS_NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
VENV := .venv
BIN := $(VENV)/bin
# Every install is pinned, also those that a range of pyproject.toml would let go further.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --constraint constraints.txt

.PHONY: help verify test lint clean

help:
	@echo "make verify   check our engine and the recorded runs of a real one against the specification,"
	@echo "              and prove a core of the theorems"
	@echo "make test     run the whole test suite; ARGS='tests/house -x' runs a part of it"
	@echo "make lint     ruff, ruff format and mypy"
	@echo "make clean    remove .venv and whatever the tools leave behind"

verify: $(VENV)/installed
	@$(BIN)/schedcheck verify --recordings tests/recordings
	@echo "a core of the proofs; schedcheck prove shows them all"
	@$(BIN)/schedcheck prove --core

test: $(VENV)/installed
	@$(BIN)/python -m pytest --numprocesses auto --dist loadfile $(ARGS)

lint: $(VENV)/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache

# Installs again only if what to install has changed.
$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "set-up 2/3  installing torch, by far the largest package"
	@$(INSTALL) torch setuptools
	@echo "set-up 3/3  installing the other pinned packages and schedcheck itself"
	@$(INSTALL) --quiet --no-build-isolation --editable '.[runner,proofs,test,dev]'
	@touch $@
	@echo "set-up done; the next run skips it"

# A name on the PATH proves nothing (version managers put stand-ins there), so each is tried.
$(BIN)/python:
	@for python in $(PYTHONS); do \
	    if "$$python" -c '$(IS_NEW_ENOUGH)' 2>/dev/null; then \
	        echo "set-up 1/3  creating $(VENV) with $$("$$python" --version)"; \
	        "$$python" -m venv $(VENV) && exit 0; \
	        rm -rf $(VENV); exit 1; \
	    fi; \
	done; \
	echo "schedcheck needs Python 3.11 or newer, and none of these is: $(PYTHONS)." \
	    "Install one, or name it: make PYTHON=/path/to/python" >&2; \
	exit 1
