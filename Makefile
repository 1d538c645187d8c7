# What people do with this project. `make serve` and `make test` each work alone on a fresh machine that has
# Python 3.11 or newer (with venv), make and a C/C++ compiler. The first one compiles libllama: ~6 minutes on 2 cores.

VENV   ?= .venv
PYTHON ?=
BIN    := $(VENV)/bin
ARGS   ?=

.PHONY: help serve chat test check format bench docs soak clean
help:            ## this list
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

serve: $(VENV)/.demo   ## serve SmolLM2 on http://127.0.0.1:8080 (ARGS="-m other.gguf --port 9000" for more)
	$(BIN)/minka serve $(ARGS)

chat: $(VENV)/.demo    ## talk to SmolLM2 in this terminal
	$(BIN)/minka chat $(ARGS)

test: $(VENV)/.dev     ## run all tests
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.dev    ## format, lint, types, layers, size budgets, fresh docs
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/budgets.py
	$(BIN)/python tools/docs.py --check

format: $(VENV)/.dev   ## rewrite the code in the project's format
	$(BIN)/ruff format --quiet
	$(BIN)/ruff check --quiet --fix

docs: $(VENV)/.dev     ## rewrite the generated pages of docs/
	$(BIN)/python tools/docs.py

bench: $(VENV)/.bench  ## measure side by side with llama-server (ARGS="eight shared" for some scenarios)
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(VENV)/.dev     ## 20 minutes of random traffic with all laws checked (ARGS="--minutes 60")
	$(BIN)/python -m tools.soak $(ARGS)

clean:                 ## remove everything that make created
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# One stamp an extra; the script shows how far the compiler is.
$(VENV)/.demo $(VENV)/.dev $(VENV)/.bench: $(VENV)/.%: pyproject.toml tools/install.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh tools/install.sh $*
	@touch $@
