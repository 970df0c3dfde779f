"""Fixtures for kernel tests: import them in a conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsv4_rocm.testing.cdna.device import Device, device
from dsv4_rocm.testing.cdna.program import ARCHES


@pytest.fixture(params=ARCHES)
def gfx_arch(request: pytest.FixtureRequest) -> str:
    """Each emulated architecture in turn."""
    return str(request.param)


@pytest.fixture
def gfx_device(gfx_arch: str) -> Iterator[Device]:
    """An entered device of each architecture, with every check on."""
    with device(gfx_arch) as dev:
        yield dev
