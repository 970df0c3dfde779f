"""The platform of a machine without a GPU: vLLM's CPU platform with our serve plan."""

from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import PlatformEnum

from dsv4_rocm import arch
from dsv4_rocm_platform.hooks import Dsv4Hooks

# A CPU build computes on the host even when the machine holds a GPU.
arch.pin(arch.HOST)


class Dsv4HostPlatform(Dsv4Hooks, CpuPlatform):
    """Keeps the enum CPU, so every branch of vLLM that asks is_cpu() holds."""

    _enum = PlatformEnum.CPU
    device_name = "cpu"
