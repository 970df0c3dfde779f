"""vLLM's planner of the KV pool, called alike in every release of the window. Importing it imports vLLM."""

import importlib
from typing import Any


def _in_0_33(name: str) -> Any:
    """A module that 0.32 has not; None there."""
    try:
        return importlib.import_module(f"vllm.v1.core.{name}")
    except ModuleNotFoundError:
        return None


_builders = _in_0_33("kv_cache_config_builder")
_planning: Any = _in_0_33("kv_cache_planning") or importlib.import_module("vllm.v1.core.kv_cache_utils")


def plan(config: Any, specs: dict[str, Any], memory: int) -> Any:
    """The KVCacheConfig of one worker: specs by cache name, bytes for the pool."""
    arguments = [config, [specs], [memory]]
    if _builders is not None:
        arguments.append(_planning.get_global_kv_cache_groups(config, [specs]))
    (planned,) = _planning.get_kv_cache_configs(*arguments)
    return planned


def bytes_per_block(config: Any, groups: Any) -> int:
    """Bytes of one block of the pool that these groups share."""
    found: int = _planning._pool_bytes_per_block(config, groups)
    return found


def largest_length(config: Any, groups: Any, memory: int) -> int:
    """The longest request that fits into `memory` bytes."""
    builder = [] if _builders is None else [_builders.get_kv_cache_config_builder(config)]
    found: int = _planning._estimate_max_model_len_from_groups(*builder, config, groups, memory)
    return found
