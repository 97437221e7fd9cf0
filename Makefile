# Every target sets up .venv by itself: uv is installed into .uv, and uv.lock fixes every version.
# Bytecode is compiled once: every process of a launch imports MindSpore, and some systems keep none written at run time.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.10 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
UV := .uv/bin/uv
RUN := .venv/bin
# pytest's options without the folders that `make test` leaves to targets of their own.
ALL := --import-mode=importlib --strict-markers -ra
# MindSpore's threads spin against each other on few cores.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= PASSIVE
export GLOG_v ?= 3

.PHONY: dataset wheel demo demo-mindformers test test-ranks test-cluster test-nightly pipeline-matrix test-mindformers-2.1 lint bench setup clean

setup: .venv/ready

.uv/bin/uv:
	@test -n "$(PYTHON)" || { echo "hp-memory needs Python 3.10, 3.11 or 3.12 on PATH (or PYTHON=...)"; exit 2; }
	$(PYTHON) -m venv .uv
	.uv/bin/python -m pip install --quiet 'uv>=0.9,<1'

.venv/ready: $(UV) pyproject.toml uv.lock
	$(UV) sync --locked --python "$(shell command -v $(PYTHON))" --compile-bytecode
	touch $@

# For an environment that has MindFormers: pip install dist/*.whl
wheel: $(UV)
	$(UV) build --wheel

demo: .venv/ready
	$(RUN)/python recipes/demo.py

# MindFormers' own Trainer and DeepSeek-V3 at a tiny size on two workers, with FSDP, expert parallelism and the callback.
demo-mindformers: .venv/ready
	$(RUN)/hp-memory train recipe=tiny_deepseek_v3_ranks

# The shipped text as MindRecord, for MindFormers' own loader: data.mindrecord=runs/dataset/tiny.mindrecord
# In Megatron's format: data.megatron=runs/dataset/tiny
dataset: runs/dataset/tiny.mindrecord runs/dataset/tiny.idx
runs/dataset/tiny.mindrecord: .venv/ready hp_memory/train/make_dataset.py
	$(RUN)/python -m hp_memory.train.make_dataset $@ 64
runs/dataset/tiny.idx: .venv/ready hp_memory/mindformers/make_megatron.py
	$(RUN)/python -m hp_memory.mindformers.make_megatron $(basename $@)

# Two processes: what MindFormers or a compiled graph leaves behind in MindSpore doesn't reach the unit tests.
test: .venv/ready
	$(RUN)/python -m pytest tests/unit
	$(RUN)/python -m pytest tests/integration tests/recipes tests/system

# MindFormers' Trainer over 2 and 4 ranks: every parallel dimension with every layout. Hours on two cores.
test-ranks: .venv/ready
	$(RUN)/python -m pytest --override-ini addopts='$(ALL)' tests/ranks

test-cluster: .venv/ready
	$(RUN)/python -m pytest --override-ini addopts='$(ALL)' tests/cluster

# Builds an environment of its own below a temporary folder.
test-mindformers-2.1: .venv/ready
	$(RUN)/python -m pytest --override-ini addopts='$(ALL)' tests/mindformers_2_1

test-nightly: .venv/ready
	HYPOTHESIS_PROFILE=nightly HP_MEMORY_LAYOUTS=all $(RUN)/python -m pytest tests/unit
	$(RUN)/python -m tests.fuzz --programs 5000

pipeline-matrix: .venv/ready
	@failed=0; for recipe in full interleaved sessions deep uneven workers_2 workers_4 workers_4_stages; do \
		$(RUN)/hp-memory pipeline recipe=pp_regression/$$recipe || failed=1; done; exit $$failed

# Ratios measured side by side, as JSON in runs/bench.
bench: .venv/ready
	mkdir -p runs/bench
	set -e; for name in activation_overhead activation_memory layouts pipeline_split; do \
		$(RUN)/python benchmarks/$$name.py --out runs/bench/$$name.json; done
	$(RUN)/python benchmarks/offload_planner.py > runs/bench/offload_planner.json
	$(RUN)/python benchmarks/mindformers_callback.py > runs/bench/mindformers_callback.json
	$(RUN)/python benchmarks/dryrun.py cost > runs/bench/dryrun.json

lint: .venv/ready
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/lint-imports
	$(RUN)/mypy

clean:
	rm -rf .venv .uv runs
