# The commands of this project. Each works as the first one in a fresh clone: it makes .venv when it is needed.
#
# PYTHON  the interpreter that .venv is made with (3.10 or newer)
# ARGS    further arguments for pytest:  make test ARGS='-k barrier -x'; with ARGS=-n0 one test after the other

PYTHON ?= python3
TORCH := 2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-mxnet versions check lint types format docs sanitize bench build clean

help: ## show this list
	@echo 'make COMMAND, each of which first makes $(VENV) if need be:'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(STAMP) ## train a small network on handwritten digits: a scheduler, a server and two workers
	$(BIN)/bpslaunch -n 2 -s 1 -- $(BIN)/python examples/torch_digits.py --epochs 5 --seed 1

# Where four run at a time on two cores, importing torch alone takes a worker ten seconds.
test: $(STAMP) ## run the tests
	$(BIN)/python -m pytest -n 4 --timeout 240 $(ARGS)

test-mxnet: $(STAMP) ## run the tests of the MXNet plugin, in an environment of its own
	$(BIN)/python scripts/mxnet_environment.py
	.venv-mxnet/bin/python -m pytest -n 2 $(ARGS) tests/mxnet

versions: $(STAMP) ## run the tests that need no torch on every Python that is here, and with the oldest dependencies
	$(BIN)/python scripts/versions.py $(ARGS)

check: lint types ## lint and types

lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

format: $(STAMP) ## rewrite the sources as ruff likes them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## write docs/env.md from the table in byteps_py/settings.py, outputs into docs/plan.md, and HTML of all pages and docstrings
	$(BIN)/python scripts/env_docs.py
	$(BIN)/python scripts/plan_docs.py
	$(BIN)/python -m sphinx -q -E -W --keep-going -c docs -d docs/_build/doctrees . docs/_build/html
	@echo 'docs/_build/html/docs/index.html'

sanitize: ## the C kernels, warnings being errors, and under the address and undefined-behaviour sanitizers
	scripts/sanitize

bench: $(STAMP) ## measure the kernels
	$(BIN)/python -m benchmarks.kernels

build: $(STAMP) ## make .venv and compile csrc/, again if it changed

clean: ## remove .venv and everything that was generated
	rm -rf $(VENV) .venv-versions .venv-mxnet .editable build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis docs/_build
	find byteps_py launcher tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +
	find byteps_py -name '*.so' -delete

$(STAMP): pyproject.toml $(wildcard setup.py csrc/*)
	@scripts/environment $(PYTHON) $(VENV) $(TORCH)
