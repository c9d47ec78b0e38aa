# Every target sets up what it needs in .venv, once; `make` alone lists them. See tools/setup.py for the set-up.

# Without a GPU: the torch this is developed on and the Triton that its CUDA build pins. They are installed in one
# command, or pip would choose them apart. With a GPU the machine's own torch is used, or else the registry's newest.
TORCH = torch==2.13.0 triton==3.7.1
# The NVSHMEM whose bitcode the tests link: 139 MB, beside .venv, since torch would take an installed one for its own.
NVSHMEM = nvidia-nvshmem-cu12==3.4.5
# The transformers whose models the long suites parallelize; beside .venv, as nobody else needs it.
TRANSFORMERS = transformers==5.23.0
# The Megatron-Core whose layer of experts the long suites give our dispatcher; without what it asks for beside torch.
MEGATRON = megatron-core==0.16.1
# The torchtitan whose experts the long suites give our dispatcher, and what its layers import beside torch.
TORCHTITAN = torchtitan==0.3.0 spmd_types==0.3.1 tyro==1.0.17 docstring_parser==0.18.0
# What the reference GPU machine has; its CUDA build of torch runs on CPUs as well. 4 GB.
STACK = torch==2.11.0 triton==3.6.0
STACK_PYTHON = 3.12
STACK_SUITES = tests/runtime tests/backend tests/ops tests/nn
# The oldest and the newest supported Triton, which `make versions` runs the marked tests on.
TRITONS = 3.6.0 3.9.0
# Those besides the one in .venv that `make gates` compiles all kernels with: every supported minor; and the targets
# that they compile for. That of .venv compiles for all.
GATED = 3.6.0 3.8.0 3.9.0
GATED_TARGETS = sm_90 sm_90+warps sm_100 sm_100+warps gfx942

ARGS =#          more arguments for what a target runs: make test ARGS="-k ring"
JOBS = 2#        processes of make test
PYTHON ?=#       the Python that .venv is made from; found if not given

READY = .venv/.ready
RUN = .venv/bin/python

.DEFAULT_GOAL = help
.PHONY: help setup test lint bench gates explore soak gpu verify versions stack clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12
	@echo 'ARGS="..." goes to what the target runs; ARGS=-h says what there is'

setup: $(READY) ## create .venv, or bring it up to date

# Tests start many processes: bytecode is kept for them, also where the environment says not to.
test: $(READY) .triton/nvshmem/.ready ## the tests, without those marked verify or gpu; some: ARGS="-k ring"
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(RUN) -m pytest -q -n $(JOBS) --dist loadfile --durations=30 $(ARGS)

lint: $(READY) ## ruff and mypy
	$(RUN) -m ruff check .
	$(RUN) -m mypy tilelink bench tools/setup.py

bench: $(READY) ## every program checked at a small shape, and times predicted; pages in bench/out; executed figures, too: ARGS=--full
	$(RUN) -m bench --out bench/out $(ARGS)

gates: $(READY) $(GATED:%=gates-%) ## every kernel compiled for every target, on every Triton, held against its program; some: ARGS="--only ring"
	$(RUN) -W ignore::UserWarning -m bench.gates $(ARGS)

explore: $(READY) ## every program under 10,000 schedules of its execution; seeds in bench/results; some: ARGS="--only ring"
	OMP_NUM_THREADS=1 $(RUN) -W ignore::RuntimeWarning -m bench.explore $(ARGS)

soak: $(READY) ## random calls of all programs for 240 s, every result checked; result in bench/out; repeat one: ARGS="--case SEED"
	OMP_NUM_THREADS=1 $(RUN) -W ignore::RuntimeWarning -m bench.soak $(ARGS)

gpu: ## one script of under 14 minutes for a machine with a GPU; results in bench/results; without one: ARGS=--dry
	@python=python3; $$python -c "import sympy, torch, triton; assert torch.cuda.is_available()" 2>/dev/null \
		|| { $(MAKE) --no-print-directory setup; python=$(RUN); }; \
	PYTHONPATH=$(CURDIR) $$python -m bench.gpu $(ARGS)

verify: versions stack .triton/nvshmem/.ready .triton/transformers/.ready .triton/megatron/.ready .triton/torchtitan/.ready ## the long suites, the Triton versions and the stack; ARGS as for test
	$(RUN) -m pytest -q -m "verify and not gpu" $(ARGS)

versions: $(TRITONS:%=triton-%) ## the tests marked versions, on the oldest and the newest Triton

stack: .triton/stack/.ready ## the suites of what meets a GPU first, on the Python, torch and Triton of the reference GPU machine; ARGS as for test
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .triton/stack/bin/python -m pytest -q -n $(JOBS) --dist loadfile $(STACK_SUITES) $(ARGS)

clean: ## remove what make made: environments, caches, results
	rm -rf .venv .triton .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info bench/out
	find . -name __pycache__ -prune -exec rm -rf {} +

# What else a target may need. A set-up that was interrupted leaves no .ready behind and is done again.
$(READY): pyproject.toml Makefile tools/setup.py
	@python=`PYTHON="$(PYTHON)" tools/find-python` && "$$python" tools/setup.py $(TORCH)

# Changes when .venv is made anew, maybe from another Python, and not when it is brought up to date.
.venv/pyvenv.cfg: $(READY) ;

.triton/stack/.ready: Makefile
	rm -rf $(@D)
	@python=`ls -d "$$(command -v python$(STACK_PYTHON))" $$HOME/.pyenv/versions/$(STACK_PYTHON).*/bin/python$(STACK_PYTHON) 2>/dev/null \
		| while read found; do "$$found" -c "import venv" 2>/dev/null && echo "$$found" && break; done`; \
	test -n "$$python" || { echo "Python $(STACK_PYTHON) is not here; name another by STACK_PYTHON=3.13"; exit 1; }; \
	"$$python" -m venv $(@D)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check $(STACK) numpy sympy pytest pytest-xdist hypothesis matplotlib
	@touch $@

.triton/%/.ready: .venv/pyvenv.cfg
	rm -rf $(@D)
	$(RUN) -m pip install -q --disable-pip-version-check --no-deps --target $(@D) triton==$*
	@touch $@

# Where it can't be had, the tests that need it say so.
.triton/nvshmem/.ready: .venv/pyvenv.cfg
	rm -rf $(@D)
	-$(RUN) -m pip install -q --disable-pip-version-check --no-deps --target $(@D) $(NVSHMEM) && touch $@

.triton/transformers/.ready: .venv/pyvenv.cfg
	rm -rf $(@D)
	-$(RUN) -m pip install -q --disable-pip-version-check --target $(@D) $(TRANSFORMERS) && touch $@

.triton/megatron/.ready: .venv/pyvenv.cfg
	rm -rf $(@D)
	-$(RUN) -m pip install -q --disable-pip-version-check --no-deps --target $(@D) $(MEGATRON) && touch $@

.triton/torchtitan/.ready: .venv/pyvenv.cfg
	rm -rf $(@D)
	-$(RUN) -m pip install -q --disable-pip-version-check --no-deps --target $(@D) $(TORCHTITAN) && touch $@

.PHONY: $(GATED:%=gates-%)
$(GATED:%=gates-%): gates-%: .triton/%/.ready
	PYTHONPATH=$(CURDIR)/.triton/$* $(RUN) -W ignore::UserWarning -m bench.gates $(GATED_TARGETS:%=--target %) $(ARGS)

.PHONY: $(TRITONS:%=triton-%)
.PRECIOUS: .triton/%/.ready
$(TRITONS:%=triton-%): triton-%: .triton/%/.ready
	@PYTHONPATH=$(CURDIR)/.triton/$* $(RUN) -c 'import triton; print("Triton", triton.__version__); assert triton.__version__ == "$*"'
	PYTHONPATH=$(CURDIR)/.triton/$* $(RUN) -m pytest -q -m "versions and not gpu"
