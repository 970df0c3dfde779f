"""Asks vLLM's planner for the KV plan of some models on simulated architectures: JSON in, JSON out."""

import copy
import json
import multiprocessing
import sys
import tempfile

from dsv4_rocm.testing.simulated_platform import simulate

MEMORY = 8 << 30


def engine_config(directory, **arguments):
    from vllm.engine.arg_utils import EngineArgs

    base = {"max_model_len": 4096, "max_num_seqs": 4, "trust_remote_code": True, "kv_cache_dtype": "fp8"}
    base |= {"tokenizer_mode": "deepseek_v4", "enforce_eager": True, "distributed_executor_backend": "mp"}
    return EngineArgs(model=directory, load_format="dummy", **{**base, **arguments}).create_engine_config()


def plan(config, specs, layouts):
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

    layout = resolve_kv_cache_layout(config, [layouts], list(specs.values()))
    config.cache_config.kv_cache_layout = layout.name
    (planned,) = get_kv_cache_configs(config, [specs], [MEMORY])
    (block_bytes,) = {tensor.block_stride for tensor in planned.kv_cache_tensors}
    return {
        "pages": sorted({spec.page_size_bytes for spec in specs.values()}, reverse=True),
        "groups": [group.kv_cache_spec.block_size for group in planned.kv_cache_groups],
        "layers": [len(group.layer_names) for group in planned.kv_cache_groups],
        "bytes_per_block": block_bytes,
        "layout": layout.name,
    }


def from_model(config):
    """The plan from the real model class, made on the meta device as vLLM makes it."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.model_loader.utils import initialize_model

    from dsv4_rocm.attention.backend import Dsv4Backend

    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, 0, f"file://{tempfile.mktemp()}", 0, "gloo")
            initialize_model_parallel(1)
        torch.set_default_dtype(config.model_config.dtype)
        with torch.device("meta"):
            model = initialize_model(vllm_config=config)
        layers = config.compilation_config.static_forward_context
        specs = {name: spec for name, layer in layers.items() if (spec := layer.get_kv_cache_spec(config)) is not None}
        layouts = [layout.name for layout in Dsv4Backend.supported_kv_cache_layouts()]
        return {"class": type(model).__module__, "plan": plan(config, specs, layouts)}


def refusals(directory):
    """Flags that vLLM itself refuses on the host before our plan is made."""
    cases = {"eplb": {"enable_eplb": True, "enable_expert_parallel": True, "tensor_parallel_size": 2}}
    cases["hisparse"] = {"attention_config": {"hisparse_config": {}}}
    found = {}
    for name, arguments in cases.items():
        try:
            engine_config(directory, **arguments)
            found[name] = None
        except Exception as error:
            found[name] = str(error)
    return found


def twice(directory):
    from vllm.config.utils import replace
    from vllm.platforms import current_platform

    config = engine_config(directory, block_size=256)
    found = []
    for hook in (current_platform.check_and_update_config, current_platform.update_block_size_for_backend):
        config.cache_config.block_size = 4
        hook(config)
        found.append(config.cache_config.block_size)
    # A draft model's configuration is a copy with another model type, over the same CacheConfig.
    draft = copy.deepcopy(config.model_config)
    draft.hf_config.model_type = "deepseek_mtp"
    config.cache_config.block_size = 4
    found.append(replace(config, model_config=draft).cache_config.block_size)
    return found


def main(name, directories):
    simulate(name)
    from vllm.platforms import current_platform

    answer = {"platform": type(current_platform).__name__, "enum": current_platform._enum.name}
    answer["refusals"] = refusals(directories["tiny"])
    answer["twice"] = twice(directories["tiny"])
    fp8 = {"attention_config": {"indexer_kv_dtype": "fp8"}}
    answer["models"] = {name: from_model(engine_config(path, **fp8)) for name, path in directories.items()}
    answer["auto"] = from_model(engine_config(directories["tiny"]))["plan"]["pages"]
    return answer


if __name__ == "__main__":
    stdout, sys.stdout = sys.stdout, sys.stderr
    import transformers.models.auto.modeling_auto  # noqa: F401  once, for all children; vLLM is imported in each

    names, models = sys.argv[1:], json.load(sys.stdin)
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        answers = pool.starmap(main, [(name, models) for name in names], chunksize=1)
    json.dump(dict(zip(names, answers, strict=True)), stdout)
