# Every target sets itself up: Python >= 3.11 and a C++ compiler are all it needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
OUT := build
DEMO := examples/01_trace_a_kernel
PYTHONS := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11
CXXS := $(CXX) g++ clang++ c++
CUDA_SOURCES = $$(git ls-files --cached --others --exclude-standard '*.cu' '*.cuh' '*.hpp' '*.cpp')

PATH_OUTSIDE := $(PATH)
export PATH := $(CURDIR)/$(BIN):$(PATH)
unexport PYTHONPATH PYTHONHOME

.PHONY: help demo test lint format bench clean

help:  ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.run  ## record a kernel, print its report, export it for Perfetto
	@mkdir -p $(OUT)
	@if ($(call first,$(CXXS),--version)) >/dev/null; then \
	  megatrace record --force -o $(OUT)/demo.mtr -- python $(DEMO)/run.py; \
	else \
	  echo "No C++ compiler here (apt-get install g++), so this replays a capture made on an H200." >&2; \
	  cp $(DEMO)/h200.mtr $(OUT)/demo.mtr; \
	fi
	@megatrace report $(OUT)/demo.mtr
	@megatrace export --force -o $(OUT)/demo.pftrace.gz $(OUT)/demo.mtr

# A file's tests stay together, and in order: many share a server or a recording.
test: $(VENV)/.dev  ## run every test; ARGS="-k ring" passes arguments to pytest
	@($(call first,$(CXXS),--version)) >/dev/null \
	  || { echo "make test needs a C++ compiler: on Debian or Ubuntu, sudo apt-get install g++" >&2; exit 1; }
	@python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.dev  ## ruff, mypy, clang-format, generated headers
	@ruff check
	@ruff format --check --quiet || { echo "not formatted: run make format" >&2; exit 1; }
	@mypy megatrace
	@clang-format --dry-run -Werror $(CUDA_SOURCES)
	@python -m megatrace.schema.emit --check

format: $(VENV)/.dev  ## rewrite the sources as lint wants them
	@ruff check --fix --quiet || true
	@ruff format --quiet
	@clang-format -i $(CUDA_SOURCES)

bench: $(VENV)/.dev  ## run the benchmarks; ONLY=ring picks tests/bench/bench_*ring*.py
	@for program in tests/bench/bench_*$(ONLY)*.py; do \
	  echo "== $$program"; name=$${program%.py}; python -m "$${name//\//.}"; \
	done

clean:  ## remove what make has built, .venv too
	@rm -rf $(VENV) $(OUT) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The first of $(1) that succeeds with the arguments $(2), printed.
first = for tool in $(1); do command -v "$$tool" >/dev/null && "$$tool" $(2) >/dev/null 2>&1 && echo "$$tool" && exit 0; done; exit 1

# One environment, in two steps: what a user has, and what a developer has on top.
$(VENV)/.run: REQUIREMENTS = .[view]
$(VENV)/.dev: REQUIREMENTS = .[dev]
$(VENV)/.run $(VENV)/.dev: pyproject.toml
	@export PATH="$(PATH_OUTSIDE)"; \
	python=$$($(call first,$(PYTHONS),-c 'import sys; sys.exit(sys.version_info < (3, 11))')) \
	  || { echo "megatrace needs Python 3.11 or newer: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }; \
	"$$python" tests/tools/environment.py $(VENV) '$(REQUIREMENTS)'
	@touch $@ $(VENV)/.run
