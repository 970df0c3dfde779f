"""The platform of an NVIDIA machine: vLLM's CUDA platform with our serve plan."""

from vllm.platforms.cuda import CudaPlatform
from vllm.platforms.interface import PlatformEnum

from dsv4_rocm_platform.hooks import Dsv4Hooks


class Dsv4CudaPlatform(Dsv4Hooks, CudaPlatform):
    """Keeps the enum CUDA, so every branch of vLLM that asks is_cuda() holds."""

    _enum = PlatformEnum.CUDA
