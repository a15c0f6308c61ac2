# make quickstart   set up, train, evaluate, leave a report
# make test         set up, pass the tests
# make test-long    the tests that `make test` leaves out since they check on more of the same: ten minutes
# make test-vllm    set up the serving environment too, pass the tests that need it
# make test-hosts   runs over three network namespaces, links cut, hosts killed (root): a quarter of an hour
# make test-frameworks  adapters with frameworks that need an environment of their own
# make test-docker  builds the images, trains in containers (a Docker engine)
# make kills        kill every process of asynchronous runs at random moments, with twenty seeds: twenty minutes
# make check        lint, types, import rules
# make vllm         the serving environment (.venv-vllm): vLLM, with CUDA or on the CPU
# make gpu-check    parity of engines and trainer in bf16 on a CUDA device; exit status 2 where there is none
# make gpu-sizes    three versions of Qwen3-VL-2B, 4B and 8B with random weights on a CUDA device, 15 minutes
# make bench        run every benchmark, rewrite benchmarks/results and benchmarks/README.md
# make clean        remove what the targets above made (the runs too)

SHELL := bash
PYTHON := .venv/bin/python

.PHONY: setup vllm quickstart test test-long test-vllm test-hosts test-frameworks test-docker kills check gpu-check gpu-sizes bench clean

setup:
	@scripts/setup

vllm: setup
	@scripts/setup_vllm

quickstart: setup
	@$(PYTHON) -m flows.train --preset quickstart

test: setup
	@scripts/tests -n 3 --dist worksteal --durations 20 -m 'not vllm and not netns and not docker and not long and not frameworks'

# What `make test` leaves out because it checks on more of the same: ten minutes more.
test-long: setup
	@$(PYTHON) -m pytest -n 2 --dist worksteal --durations 20 -m 'long and not vllm'

# The tests of one running server; `pytest -m vllm` also trains on one and kills servers, fifteen minutes more.
test-vllm: vllm
	@scripts/tests -m 'vllm and not slow' --durations 20

# Runs over three network namespaces as hosts; needs root.
test-hosts: setup
	@$(PYTHON) -m pytest -m netns -s

# The adapters with frameworks whose pins exclude ours, each in an environment of its own (.venv-NAME).
test-frameworks: setup
	@scripts/setup_frameworks
	@$(PYTHON) -m pytest -m frameworks

# Images, compose, a run on them, a container killed; needs a Docker engine.
test-docker: setup
	@$(PYTHON) -m pytest -m docker -s

kills: setup
	@ROLLWRIGHT_KILLS=20 $(PYTHON) -m pytest -n 2 tests/flows/test_resume.py -k whatever_is_killed --durations 20

check: setup
	@scripts/check

gpu-check: setup
	@$(PYTHON) scripts/gpu_check.py

gpu-sizes: setup
	@$(PYTHON) scripts/gpu_sizes.py

bench: setup
	@$(PYTHON) -m benchmarks --all --write

clean:
	rm -rf .venv .venv-vllm .venv-browsergym .venv-frameworks .prefect runs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
