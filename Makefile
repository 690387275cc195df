# The virtual environment, and the Python that creates it
VENV ?= .venv
PYTHON ?= python3

BIN := $(VENV)/bin
RUN_INSTALLED := $(VENV)/.installed-run
DEV_INSTALLED := $(VENV)/.installed-dev
REQUIREMENTS := pyproject.toml constraints.txt

.PHONY: run text test test-all lint type format docs docs-long clean

# From a fresh machine to a trained agent: a model and its learning curve in runs/
run: $(RUN_INSTALLED)
	$(BIN)/python -m sb3_grpo train --algo dapo --env CartPole-v1 --timesteps 100000

# Train a small transformer to add, rewarded for right answers
text: $(RUN_INSTALLED)
	$(BIN)/python -m sb3_grpo text

# One process per core, each with one thread, as the processes that tests start.
# With slow ones: make test-all; what takes even longer: make docs-long
test: $(DEV_INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m "not slow and not long"

test-all: $(DEV_INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m "not long"

lint: $(DEV_INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(DEV_INSTALLED)
	$(BIN)/mypy

format: $(DEV_INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Build the site in docs/_build/html/index.html. Warnings and broken internal links are errors
docs: $(DEV_INSTALLED)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python -m pytest -q tests/docs/test_links.py

# Before a release and after a change of results: pages and notebooks that take more than a minute
docs-long: $(DEV_INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m long

# Keeps runs/
clean:
	rm -rf $(VENV) .nox build dist docs/_build *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find sb3_grpo envs tests benchmarks stress -name __pycache__ -prune -exec rm -rf {} +

# Modules are compiled as they are imported: all of them take a minute and a half
$(RUN_INSTALLED): $(REQUIREMENTS) | $(BIN)/pip
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e . "gymnasium[classic-control]"
	@touch $@

$(DEV_INSTALLED): $(REQUIREMENTS) | $(BIN)/pip
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e ".[dev]"
	@touch $@ $(RUN_INSTALLED)

# Debian's python3 cannot create virtual environments without python3-venv, and leaves a broken one behind
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'sb3-grpo needs Python 3.11 or newer: make PYTHON=python3.13'; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo '$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv'; exit 1; }
	$(PYTHON) -m venv $(@:/bin/pip=)
