# The commands a newcomer types. Each makes .venv first; that is instant when nothing changed.
STAMP := .venv/.ready
PYTEST := .venv/bin/python -m pytest

.PHONY: setup demo test test-slow lint bench docs


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

# Files that are written from cache/layout.py and recipes/*.yaml; a test holds that they are up to date.
docs: $(STAMP)
	.venv/bin/python -m dsv4_rocm.cache.generated
	.venv/bin/python -m dsv4_rocm.recipes.documents
