"""Emulated devices for the kernel tests, and quiet Triton."""

import os

import pytest

from dsv4_rocm.testing.cdna.pytest_fixtures import gfx_arch, gfx_device  # noqa: F401

# Triton 3.9 warns once a process unless this is chosen; fused is what ships today.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


@pytest.fixture
def compile_kernel():
    from dsv4_rocm.testing.cdna.triton_compile import compile_kernel

    return compile_kernel
