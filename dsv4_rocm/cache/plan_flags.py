"""The flags of `dsv4-rocm plan`, read into a plan request."""

from pathlib import Path

import torch

from dsv4_rocm import arch
from dsv4_rocm.cache.gpu_memory import GPUS, GpuModel, Parallelism
from dsv4_rocm.cache.planner import Request
from dsv4_rocm.cache.pool import StatePages
from dsv4_rocm.cache.retention import InFlight
from dsv4_rocm.cache.specs import index_encoding, row_encoding
from dsv4_rocm.model_spec import FLASH, PRO, ModelSpec

MODELS = {"flash": FLASH, "pro": PRO}


def read_flags(
    model: str,
    gpu: str,
    gpus: int | None = None,
    tensor: int | None = None,
    data: int | None = None,
    expert: bool = False,
    max_model_len: int | None = None,
    max_num_seqs: int = 1_024,
    max_num_batched_tokens: int | None = None,
    kv_cache_dtype: str = "auto",
    indexer_kv_dtype: str = "auto",
    kv_cache_memory_bytes: int | None = None,
    util: float = 0.9,
    async_scheduling: bool = True,
    eager: bool = False,
    num_speculative_tokens: int = 0,
    state_pages: StatePages = StatePages.GAPPED,
) -> Request:
    """Read flags, with vLLM's defaults where one is left out.

    Args:
        model: `flash`, `pro`, or a checkpoint directory (only its config.json is read).
        gpu: a name of `GPUS`.
        gpus: how many; by default the product of `tensor` and `data`.
        tensor: by default, all GPUs that `data` leaves.
        data: by default 1.
        expert: `--enable-expert-parallel`.
        max_model_len: by default the model's positions.
        max_num_seqs: `--max-num-seqs`.
        max_num_batched_tokens: by default what vLLM's server takes on this GPU.
        kv_cache_dtype: `--kv-cache-dtype`.
        indexer_kv_dtype: `indexer_kv_dtype` of `--attention-config`.
        kv_cache_memory_bytes: `--kv-cache-memory-bytes`.
        util: `--gpu-memory-utilization`.
        async_scheduling: vLLM's default is on; it doubles the tokens in flight.
        eager: `--enforce-eager`.
        num_speculative_tokens: drafts of a step, of `--speculative-config`.
        state_pages: how windows and states are charged.

    Raises:
        ValueError: naming the flag, the value and what to type.
    """
    product = _gpu(gpu)
    rows = row_encoding(kv_cache_dtype, torch.bfloat16)
    spec = _spec(model)
    if num_speculative_tokens < 0:
        raise ValueError(f"--num-speculative-tokens must be at least 0, got {num_speculative_tokens}")
    batches = 2 if async_scheduling else 1
    batched = product.default_batched_tokens if max_num_batched_tokens is None else max_num_batched_tokens
    return Request(
        label=model,
        spec=spec,
        gpu=product,
        split=_split(gpus, tensor, data, expert),
        max_model_len=spec.max_position if max_model_len is None else max_model_len,
        max_num_seqs=max_num_seqs,
        in_flight=InFlight(batched, batches, 1 + num_speculative_tokens * batches),
        rows=rows,
        index=index_encoding(indexer_kv_dtype, rows, arch.get(product.arch)),
        kv_memory_bytes=kv_cache_memory_bytes,
        utilization=util,
        eager=eager,
        state_pages=state_pages,
    )


def _gpu(name: str) -> GpuModel:
    if name.upper() not in GPUS:
        raise ValueError(f"--gpu must be one of {', '.join(GPUS)}, got {name}")
    return GPUS[name.upper()]


def _spec(model: str) -> ModelSpec:
    if model in MODELS:
        return MODELS[model]
    if not (Path(model) / "config.json").is_file():
        raise ValueError(f"--model must be flash, pro or a directory with a config.json, got {model}")
    return ModelSpec.from_directory(model)


def _split(gpus: int | None, tensor: int | None, data: int | None, expert: bool) -> Parallelism:
    if gpus is not None and gpus < 1:
        raise ValueError(f"--gpus must be at least 1, got {gpus}")
    if tensor is None:
        ranks = data or 1
        if gpus is not None and gpus % ranks:
            raise ValueError(f"--dp {ranks} does not divide --gpus {gpus}")
        tensor = 1 if gpus is None else gpus // ranks
    if data is None:
        if gpus is not None and tensor > 0 and gpus % tensor:
            raise ValueError(f"--tp {tensor} does not divide --gpus {gpus}")
        data = 1 if gpus is None or tensor < 1 else gpus // tensor
    if gpus is not None and tensor * data != gpus:
        raise ValueError(
            f"--gpus {gpus} is not --tp {tensor} x --dp {data} = {tensor * data}; leave --gpus out or correct it"
        )
    return Parallelism(tensor, data, expert)
