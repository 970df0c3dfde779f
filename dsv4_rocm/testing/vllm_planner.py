"""vLLM's planner of the KV pool, called alike in every release of the window. Importing it imports vLLM."""

from typing import Any

from vllm.v1.core import kv_cache_utils

try:
    from vllm.v1.core import kv_cache_planning as _planning
    from vllm.v1.core.kv_cache_config_builder import get_kv_cache_config_builder as _builder
except ImportError:  # 0.32 plans where 0.33 has the rest, and without a builder
    _planning, _builder = kv_cache_utils, None


def plan(config: Any, specs: dict[str, Any], memory: int) -> Any:
    """The KVCacheConfig of one worker: specs by cache name, bytes for the pool."""
    arguments = [config, [specs], [memory]]
    if _builder is not None:
        arguments.append(_planning.get_global_kv_cache_groups(config, [specs]))
    (planned,) = _planning.get_kv_cache_configs(*arguments)
    return planned


def bytes_per_block(config: Any, groups: Any) -> int:
    """Bytes of one block of the pool that these groups share."""
    found: int = _planning._pool_bytes_per_block(config, groups)
    return found


def largest_length(config: Any, groups: Any, memory: int) -> int:
    """The longest request that fits into `memory` bytes."""
    builder = [] if _builder is None else [_builder(config)]
    found: int = _planning._estimate_max_model_len_from_groups(*builder, config, groups, memory)
    return found
