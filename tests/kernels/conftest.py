"""Paged caches and batches as fixtures."""

from collections.abc import Callable

import pytest

from dsv4_rocm.cache.addressing import TokenBatch
from dsv4_rocm.testing.paged import Cache, token_batch


@pytest.fixture
def make_cache() -> type[Cache]:
    return Cache


@pytest.fixture
def make_batch() -> Callable[..., TokenBatch]:
    return token_batch
