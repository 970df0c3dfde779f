"""HIP kernels run on both emulated architectures, over the caches that the Triton kernels are tested with."""

import runpy
from pathlib import Path

from dsv4_rocm.testing.cdna.pytest_fixtures import gfx_arch

KERNELS = Path(__file__).parents[1] / "kernels"
_caches, _devices = runpy.run_path(str(KERNELS / "conftest.py")), runpy.run_path(str(KERNELS / "triton/conftest.py"))
make_cache, make_batch = _caches["make_cache"], _caches["make_batch"]
gpu, sparse_cache = _devices["gpu"], _devices["sparse_cache"]

__all__ = ["gfx_arch", "gpu", "make_batch", "make_cache", "sparse_cache"]
