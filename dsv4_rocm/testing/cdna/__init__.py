"""A gfx942 / gfx950 emulator on numpy: runs compiled kernels on CPU tensors and finds what hardware would punish.

from dsv4_rocm.testing import cdna

with cdna.device("gfx942") as dev:
    kernel[grid](cpu_tensor, ...)                                      # a Triton kernel, unchanged
    dev.launch(code_object, "name", grid, block, [cpu_tensor, ...])    # HIP, assembly text, a prebuilt .co
    dev.stats.issue_clocks
"""

from dsv4_rocm.testing.cdna.code_object import CodeObject
from dsv4_rocm.testing.cdna.cost import Stats
from dsv4_rocm.testing.cdna.device import Device, device
from dsv4_rocm.testing.cdna.errors import EmulationError, Finding

__all__ = ["CodeObject", "Device", "EmulationError", "Finding", "Stats", "device"]
