"""The platform of an AMD machine: vLLM's ROCm platform with our serve plan."""

from vllm.platforms.interface import PlatformEnum
from vllm.platforms.rocm import RocmPlatform

from dsv4_rocm_platform.hooks import Dsv4Hooks


class Dsv4RocmPlatform(Dsv4Hooks, RocmPlatform):
    """Keeps the enum ROCM, so every branch of vLLM that asks is_rocm() holds."""

    _enum = PlatformEnum.ROCM
