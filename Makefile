# `make demo` shows the method at work, `make test` runs the suite; both make their own environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FUZZ_SECONDS ?= 60

.PHONY: demo test test-slow test-zoo lint types docs fuzz environment clean help

help:
	@echo "make demo       train, compress and measure a small network"
	@echo "make test       run the test suite"
	@echo "make test-slow  run the tests that take minutes"
	@echo "make test-zoo   run the tests over the model zoos (an hour or so)"
	@echo "make lint types check style and types"
	@echo "make docs       build the documentation into site/"
	@echo "make fuzz       throw damaged files at the engine for a while, under sanitizers"

# What running and compressing needs.
$(VENV)/.demo: pyproject.toml CMakeLists.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[compress,digits]'
	touch $@

# Everything, for development.
$(VENV)/.everything: pyproject.toml CMakeLists.txt $(wildcard csrc/*) $(wildcard csrc/*/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[all]'
	touch $@ $(VENV)/.demo

environment: $(VENV)/.everything

demo: $(VENV)/.demo
	$(BIN)/penni demo

test: environment
	$(BIN)/python -m pytest -n 2

test-slow: environment
	$(BIN)/python -m pytest -m slow

test-zoo: environment
	$(BIN)/python -m pytest -n 2 -m zoo --timeout 1800

lint: environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: environment
	$(BIN)/mypy

docs: environment
	$(BIN)/mkdocs build --strict

fuzz: environment
	PYTHON=$(CURDIR)/$(BIN)/python fuzz/run $(FUZZ_SECONDS)

clean:
	rm -rf build site $(VENV)
