"""GPU products that recipes name: those the planner knows, and the other NVIDIA ones."""

from dsv4_rocm import arch
from dsv4_rocm.arch import GpuArch
from dsv4_rocm.cache.gpu_memory import GIB, GPUS, GpuModel

_DATASHEET = "datasheet memory less what a driver keeps; an assumption, not read on a machine"
PRODUCTS = GPUS | {
    product.name: product
    for product in (
        GpuModel("GB200", "sm100", 180 * GIB, _DATASHEET),
        GpuModel("GB300", "sm103", 270 * GIB, _DATASHEET),
        GpuModel("RTX-PRO-6000", "sm120", 94 * GIB, _DATASHEET),
    )
}


def product(name: str) -> GpuModel:
    """The product called `name`.

    Raises:
        ValueError: no such product.
    """
    found = PRODUCTS.get(name.upper())
    if found is None:
        raise ValueError(f"--gpu must be one of {', '.join(PRODUCTS)}, got {name}")
    return found


def arch_of(gpu: GpuModel) -> GpuArch:
    """Facts of a product's architecture."""
    return arch.get(gpu.arch)


def here() -> GpuModel:
    """The product in this machine, by its architecture; MI325X where there is no GPU."""
    name = arch.detect().arch or arch.HOST
    return next((gpu for gpu in PRODUCTS.values() if gpu.arch == name.name), PRODUCTS["MI325X"])
