"""HIP kernels run on both emulated architectures."""

from dsv4_rocm.testing.cdna.pytest_fixtures import gfx_arch

__all__ = ["gfx_arch"]
