"""Makes many engine configurations in one process: JSON cases on stdin, JSON outcomes on stdout."""

import json
import sys


def outcome(arguments):
    from vllm.engine.arg_utils import EngineArgs

    from dsv4_rocm_platform.serve_plan import ServePlan

    base = {"max_model_len": 4096, "max_num_seqs": 4, "trust_remote_code": True, "tokenizer_mode": "deepseek_v4"}
    try:
        config = EngineArgs(**{**base, **arguments}).create_engine_config()
    except Exception as error:
        return {"type": type(error).__name__, "is_value_error": isinstance(error, ValueError), "error": str(error)}
    return summary(config, ServePlan.of(config))


def summary(config, plan):
    return {
        "error": None,
        "block_size": config.cache_config.block_size,
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "chunked_prefill": config.scheduler_config.enable_chunked_prefill,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "rows": plan and plan.rows.value,
        "index": plan and plan.index.value,
        "notes": list(plan.notes) if plan else [],
    }


def twice(arguments):
    """The hook again, after vLLM set the block size of its smallest group, as its engine does."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    from dsv4_rocm_platform.serve_plan import ServePlan

    config = EngineArgs(**arguments).create_engine_config()
    config.cache_config.block_size = 4
    current_platform.check_and_update_config(config)
    after_hook = summary(config, ServePlan.of(config))
    config.cache_config.block_size = 4
    current_platform.update_block_size_for_backend(config)
    return {"hook": after_hook, "backend": summary(config, ServePlan.of(config))}


def main():
    cases = json.load(sys.stdin)
    results = {}
    for name, case in cases.items():
        results[name] = (twice if case.pop("twice", False) else outcome)(case)
    json.dump(results, sys.__stdout__)


if __name__ == "__main__":
    if "--interpreted" in sys.argv:
        from dsv4_rocm.testing.engine import make_triton_active

        make_triton_active()
    if "--no-amx" in sys.argv:
        import torch

        torch.cpu._is_amx_tile_supported = lambda: False
    sys.stdout = sys.stderr  # vLLM logs to stdout
    main()
