# Everything sets itself up from a bare Python 3.11 or newer.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-$(shell cksum pyproject.toml | cut -d' ' -f1)
DEMO   := .demo
# The JAX versions that the integration tests run against, with the Python each needs.
MATRIX ?= 3.11:0.4.30 3.11:0.4.38 3.11:0.5.3 3.11:0.6.2 3.11:0.8.3 3.11:0.10.2 3.12:0.12.0.1

BENCHMARKS ?= listing second_look integrity prune warm bundle eviction

.PHONY: test check demo bench test-matrix test-torch test-slow fuzz mutation clean

test: $(STAMP) check
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

demo: $(STAMP)
	rm -rf $(DEMO) && mkdir -p $(DEMO)
	@echo '--- first run: everything is compiled'
	$(BIN)/jaxcache warm -C $(DEMO)/cache examples/train.py
	@echo '--- what is in the cache now'
	$(BIN)/jaxcache ls -C $(DEMO)/cache --sort compile
	$(BIN)/jaxcache verify -C $(DEMO)/cache
	@echo '--- second run: every compile is a hit'
	$(BIN)/jaxcache warm -C $(DEMO)/cache --fail-on-miss examples/train.py

# Ratios against named peers, each a Markdown table; wants an idle machine.
bench: $(STAMP)
	for name in $(BENCHMARKS); do echo "## $$name" && $(BIN)/python -m benchmarks.$$name || exit; done

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -n 2

# With a real torch, which wants a C++ compiler; PYTHON311 is a Python 3.11.
PYTHON311 ?= python3.11
TORCH     ?= 2.13.0
test-torch: $(STAMP)
	test -x .venvs/torch-$(TORCH)/bin/torchrun || { $(PYTHON311) -m venv .venvs/torch-$(TORCH) && \
		.venvs/torch-$(TORCH)/bin/pip install --quiet torch==$(TORCH) numpy setuptools; }
	JAXCACHE_TEST_TORCH_PYTHON=$(CURDIR)/.venvs/torch-$(TORCH)/bin/python \
		$(BIN)/python -m pytest -q -m torch

test-matrix: $(STAMP)
	tools/test_matrix.sh $(BIN)/python $(MATRIX)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[jax]' --group dev
	rm -f $(VENV)/.installed-* && touch $@

# Coverage-guided fuzzing, with atheris (CPython 3.11 to 3.13 on Linux and macOS): each target of
# tools/fuzz/targets.py for FUZZ_SECONDS.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= entry riegeli snappy bundle ledger
FUZZ := build/fuzz
fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet atheris
	$(BIN)/python tools/fuzz/seeds.py $(FUZZ)/seeds
	for target in $(FUZZ_TARGETS); do \
		echo "## $$target" && mkdir -p $(FUZZ)/corpus/$$target && \
		$(BIN)/python tools/fuzz/fuzz.py $$target -max_total_time=$(FUZZ_SECONDS) -timeout=20 \
			-rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
			-artifact_prefix=$(FUZZ)/$$target- $(FUZZ)/corpus/$$target $(FUZZ)/seeds/$$target || exit; \
	done

# How many of SAMPLE small changes of the code the tests notice, with cosmic-ray.
SAMPLE ?= 300
SEED   ?= 1
mutation: $(STAMP)
	$(BIN)/python -m pip install --quiet cosmic-ray
	$(BIN)/python tools/mutation.py --sample $(SAMPLE) --seed $(SEED)

clean:
	rm -rf $(VENV) .venvs $(DEMO) dist build
