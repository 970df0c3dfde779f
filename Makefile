# The commands a newcomer types. Each makes .venv first; that is instant when nothing changed.
STAMP := .venv/.ready
PYTEST := .venv/bin/python -m pytest

.PHONY: setup demo test test-slow lint bench bench-gpu docs hip


setup: $(STAMP)

$(STAMP): .ci/requirements.txt .ci/setup.sh .ci/vllm-dist/pyproject.toml pyproject.toml
	@echo "setup: installing into .venv (some minutes the first time)"
	@.ci/setup.sh
	@touch $@

demo: $(STAMP)
	.venv/bin/dsv4-rocm demo

test: $(STAMP)
	$(PYTEST) -m "not slow"

test-slow: $(STAMP)
	$(PYTEST) -m slow

lint: $(STAMP)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: $(STAMP)
	.venv/bin/python -m dsv4_rocm.testing.bench

# On a machine with a GPU, in an environment that has its torch and Triton: PYTHON=python3 make bench-gpu
PYTHON ?= python3
bench-gpu:
	PYTHONPATH=.:platform:hip_kernels $(PYTHON) -m dsv4_rocm.testing.bench.gpu

# Files that are written from cache/layout.py, kernel selection and recipes/*.yaml; tests hold that they are up to date.
docs: $(STAMP)
	.venv/bin/python -m dsv4_rocm.cache.generated
	.venv/bin/python -m dsv4_rocm.kernels.support
	.venv/bin/python -m dsv4_rocm.recipes.documents

# The HIP code objects that are shipped; a test holds that they are up to date. With hipcc: COMPILER=hipcc.
COMPILER := ziglang
hip: $(STAMP)
	.venv/bin/python -m dsv4_rocm_hip.build --compiler $(COMPILER)
