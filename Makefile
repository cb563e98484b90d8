# make demo       what the tool does, in pictures
# make check      lint, types and the fast tests, in about a minute
# make test       everything CI checks
# make coverage   the same, with the lines no test runs
# make docs       the documentation site, into site/
# make pictures   draws the pictures of the docs again from the tables in docs/data
# make numbers    works the numbers of the pages out of these tables again, into docs/data/results.json
# make tutorials  runs the notebooks of docs/tutorials and keeps what they show
# make kill, fuzz, soak   the long tests of docs/explanation/reliability.md
# All set themselves up: a virtual environment in .venv and the install. The tests need the
# extras too (Flower, Ray, BenchMARL), which the demo does without.

PYTHON ?= python3
BIN := .venv/bin
# Python compiles what it imports, which is a small part of what is installed.
INSTALL := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt

.PHONY: demo check test coverage lint docs pictures numbers tutorials kill fuzz soak clean

demo: .venv/installed
	$(BIN)/fedfade compare quickstart --out runs/demo

# One thread a process, and three processes for two cores, because many tests wait for others they start.
# What the tests of a file share is made once. Files are taken in the order of tests/conftest.py.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

check: lint
	$(PYTEST) -m "not slow"

test: lint
	$(PYTEST)

coverage: .venv/tools
	$(PYTEST) --cov

docs: .venv/tools
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pictures: .venv/installed
	$(BIN)/python docs/pictures.py

numbers: .venv/installed
	$(BIN)/python docs/ledger.py

tutorials: .venv/tools
	$(BIN)/python -m tests.tutorials.notebooks

lint: .venv/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What docs/explanation/reliability.md counts: fifty kills of each command, half between two renames, an hour of fuzzing, memory over time.
kill: .venv/tools
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.reliability.kills --kills 50

SECONDS_EACH ?= 240
fuzz: .venv/tools
	$(INSTALL) --editable ".[fuzz]"
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.reliability.fuzz --seconds $(SECONDS_EACH)

soak: .venv/installed
	$(BIN)/fedfade bench soak

# torch first and by exact version: a range would fetch the CUDA build where there is no GPU.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) torch
	$(INSTALL) --editable .
	touch $@

.venv/tools: .venv/installed
	$(INSTALL) --editable ".[dev,flower,ray,peers,docs]"
	touch $@

clean:
	rm -rf .venv runs/demo
