"""The memory plan of a serve command, from vLLM's resolved configuration."""

from dsv4_rocm import arch
from dsv4_rocm.cache.gpu_memory import Parallelism
from dsv4_rocm.cache.planner import Plan, Request, make_plan
from dsv4_rocm.cache.retention import InFlight
from dsv4_rocm.cache.specs import index_encoding, row_encoding
from dsv4_rocm.recipes.checkpoints import Checkpoint
from dsv4_rocm.recipes.subject import Answer, Subject


def plan_of(subject: Subject, answer: Answer, found: Checkpoint) -> Plan:
    """Plan the command on its product; draft layers are left out, as in `dsv4-rocm plan`.

    Raises:
        ValueError: the model cannot be shared as asked.
    """
    import torch

    assert answer.config is not None
    config = answer.config
    rows = row_encoding(config["kv_cache_dtype"], torch.bfloat16)
    return make_plan(
        Request(
            label=subject.model,
            spec=found.spec,
            gpu=subject.gpu,
            split=Parallelism(config["tensor"], config["data"], config["expert"]),
            max_model_len=min(config["max_model_len"], found.spec.max_position),
            max_num_seqs=config["max_num_seqs"],
            in_flight=InFlight(config["max_num_batched_tokens"], 2 if config["async_scheduling"] else 1),
            rows=rows,
            index=index_encoding(config["indexer_kv_dtype"], rows, arch.get(subject.gpu.arch)),
            kv_memory_bytes=config["kv_cache_memory_bytes"],
            utilization=config["utilization"],
            eager=config["eager"],
        )
    )
