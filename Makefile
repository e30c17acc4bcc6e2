# Everything a developer or CI runs. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
ENGINE ?= simulator
CLUSTER ?= local
export PYTHONPATH := e2e
export CLUSTER KEEP

.DEFAULT_GOAL := help
.PHONY: help setup demo check fmt manifests test test-unit test-native test-api conformance chaos-router chaos-short prove-guards e2e e2e-vllm bench-router bench-operator bench-multi-turn lab-up lab-down clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-13s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make .venv with everything (needs Python >= 3.11 and pip)

$(STAMP): pyproject.toml requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else 0'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

demo: setup ## The main job, end to end, on a real Kubernetes (ENGINE=simulator|vllm CLUSTER=local|kind|current KEEP=1)
	$(BIN)/python -m demo --engine $(ENGINE)

check: setup ## The one gate: format, lint, types, layers, generated files, unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/manifests.py --check
	$(MAKE) --no-print-directory test-unit

fmt: setup ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

manifests: setup ## Generate CRDs, the chart's copies and the reference pages
	$(BIN)/python tools/manifests.py --write

test: check test-api conformance e2e ## All tests: the gate, the real API server, conformance and the lab with the simulator

test-unit: setup ## Unit tests (no cluster)
	$(BIN)/pytest -q -n 2 --dist worksteal -m "not apiserver and not lab and not vllm"

test-native: setup ## The router's unit tests on the compiled router, as its image has it (needs gcc)
	rm -rf build/native && $(BIN)/python router/native.py build/native
	PYTHONPATH=build/native:e2e $(BIN)/pytest -q -m "not apiserver and not lab and not vllm" router/tests \
		--deselect router/tests/router_tests/test_keeper.py::test_a_tick_looks_at_what_is_due_and_not_at_all_holds

test-api: setup ## Operator and CRD tests against a real kube-apiserver
	$(BIN)/pytest -q -n 2 --dist worksteal -m apiserver

chaos-router: setup ## The router under seeded load and faults (SECONDS=600 SEED=n)
	$(BIN)/python -m chaos --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

chaos-short: setup ## The same for 75 seconds
	$(BIN)/python -m chaos --seconds 75 --seed 1

prove-guards: setup ## Take each safety guard out of a copy of the source and see that a test fails (ONLY=name JOBS=2)
	PYTHONPATH=tools $(BIN)/python -m prove_guards --jobs $(or $(JOBS),2) $(if $(ONLY),--only "$(ONLY)")

e2e: setup ## Scenarios on the lab's cluster with kubelet and the simulator
	$(BIN)/pytest -q -m "lab and not vllm" e2e/lab/tests e2e/scenarios

conformance: setup ## The conformance suite on the simulator (RECORD=1: keep its table in docs/benchmarks)
	$(BIN)/python -m conformance --engine simulator $(if $(RECORD),--record)

e2e-vllm: setup ## Conformance, healing and both vendors' clients on pods of real vLLM with NixlConnector on CPU (SHORT=1: one check, RECORD=1, KEEP=1)
	$(BIN)/python -m conformance --engine vllm $(if $(SHORT),--short) $(if $(RECORD),--record)
	$(if $(SHORT),,$(BIN)/pytest -q -m "lab and vllm" e2e/scenarios)

bench-router: setup ## The router's speed beside nginx, vllm-router and vLLM's example (root, nginx; QUICK=1: a minute)
	$(BIN)/python -m bench.router $(if $(QUICK),--quick)

bench-operator: setup ## The operator with 1,000 servings and 10,000 pods on a real API server (root; QUICK=1: a tenth)
	$(BIN)/python -m bench.operator $(if $(QUICK),--quick)

bench-multi-turn: setup ## vLLM's own multi-turn benchmark through the router on simulated engines, reuse on and off
	$(BIN)/python -m bench.multi_turn

lab-up: setup ## Start a local Kubernetes (no Docker needed)
	$(BIN)/duplex-lab up

lab-down: setup ## Stop it
	$(BIN)/duplex-lab down

clean: ## Remove build output (caches in ~/.cache/duplex stay)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
