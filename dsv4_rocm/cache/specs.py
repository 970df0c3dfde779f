"""Which caches a model has, in vLLM's registration order, and the KVCacheSpec of each for vLLM's planner."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from dsv4_rocm.arch import GpuArch
from dsv4_rocm.cache.layout import (
    PAGE_ALIGNMENT,
    STATE_KINDS,
    CacheLayout,
    Encoding,
    entries_layout,
    index_layout,
    state_layout,
    swa_layout,
)
from dsv4_rocm.cache.retention import InFlight, Retention
from dsv4_rocm.model_spec import LayerKind, ModelSpec

_FP8_NAMES = ("fp8", "fp8_e4m3", "fp8_ds_mla")


@dataclass(frozen=True, slots=True)
class CacheEncodings:
    """How key rows and index rows of a server are stored."""

    rows: Encoding
    index: Encoding


SERVED = CacheEncodings(Encoding.FP8, Encoding.FP8)  # what a server uses unless its flags say otherwise


def cache_encodings(
    cache_dtype: str, indexer_kv_dtype: str | None, model_dtype: torch.dtype, arch: GpuArch
) -> CacheEncodings:
    """Encodings that the serve flags ask for.

    Args:
        cache_dtype: value of `--kv-cache-dtype`.
        indexer_kv_dtype: value of `indexer_kv_dtype` in `--attention-config`, None for the default.
        model_dtype: the model's dtype; with `--kv-cache-dtype auto`, float32 asks for fp32 rows (the accuracy oracle).
        arch: what the server runs on, which decides what `auto` means for index rows.

    Raises:
        ValueError: naming the flag, the value and what to type.
    """
    rows = row_encoding(cache_dtype, model_dtype)
    return CacheEncodings(rows, index_encoding(indexer_kv_dtype, rows, arch))


def encodings_of(vllm_config: Any, arch: GpuArch) -> CacheEncodings:
    """Encodings that vLLM's configuration asks for on an architecture; see `cache_encodings`."""
    indexer_dtype = vllm_config.attention_config.indexer_kv_dtype
    return cache_encodings(vllm_config.cache_config.cache_dtype, indexer_dtype, vllm_config.model_config.dtype, arch)


def row_encoding(cache_dtype: str, model_dtype: torch.dtype) -> Encoding:
    """Encoding of key rows; see `cache_encodings`."""
    if cache_dtype in _FP8_NAMES:
        return Encoding.FP8
    if cache_dtype == "bfloat16":
        return Encoding.BF16
    if cache_dtype == "auto":
        return Encoding.FP32 if model_dtype is torch.float32 else Encoding.FP8
    raise ValueError(
        f"--kv-cache-dtype must be auto, fp8 or bfloat16 for DeepSeek-V4, got {cache_dtype}; use --kv-cache-dtype fp8"
    )


def index_encoding(indexer_kv_dtype: str | None, rows: Encoding, arch: GpuArch) -> Encoding:
    """Encoding of index rows; see `cache_encodings`.

    `auto` is mxfp4 beside fp8 key rows where matrix instructions take it, else the encoding of the key rows.
    """
    if indexer_kv_dtype in (None, "auto"):
        return Encoding.MXFP4 if rows is Encoding.FP8 and arch.multiplies_mxfp4 else rows
    if indexer_kv_dtype == rows.value:
        return rows
    if indexer_kv_dtype == "mxfp4" and rows is Encoding.FP8:
        return Encoding.MXFP4
    raise ValueError(
        f"--attention-config indexer_kv_dtype={indexer_kv_dtype} is not available with {rows.value} rows; "
        f"leave it out or use {rows.value}"
    )


def layer_caches(kind: LayerKind, encodings: CacheEncodings, window: int) -> dict[str, CacheLayout]:
    """Caches of one layer by their name inside it. The order is the registration order: entries before state."""
    caches = {"swa": swa_layout(encodings.rows, window)}
    if kind is not LayerKind.SWA:
        caches["entries"] = entries_layout(kind, encodings.rows)
        caches["compressor.state"] = state_layout(kind, encodings.rows)
    if kind is LayerKind.C4A:
        caches["indexer.keys"] = index_layout(encodings.index)
        caches["indexer.compressor.state"] = state_layout(kind, encodings.rows, index=True)
    return caches


def model_caches(spec: ModelSpec, encodings: CacheEncodings, prefix: str = "model.layers") -> dict[str, CacheLayout]:
    """Caches of all decoder layers by full name, in registration order."""
    return {
        f"{prefix}.{layer.index}.attn.{name}": layout
        for layer in spec.layers
        for name, layout in layer_caches(layer.kind, encodings, spec.window).items()
    }


def to_vllm(layout: CacheLayout, in_flight: InFlight | None = None) -> Any:
    """The KVCacheSpec that makes vLLM's planner allocate pages of this layout.

    Byte-encoded rows are declared by their size; vLLM hands back a uint8 view [blocks, 1, rows, row bytes].

    Args:
        layout: of the cache.
        in_flight: what the server may have in flight, for specs that our managers serve; without it windows and states
            are vLLM's own sliding windows, which hold more pages.
    """
    from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowMLASpec

    common: dict[str, Any] = {
        "block_size": layout.tokens_per_page,
        "num_kv_heads": 1,
        "max_tp_shards": 1,
        "head_size": layout.row_bytes,
        "dtype": torch.uint8,
        "alignment": PAGE_ALIGNMENT if layout.padded_page_bytes % PAGE_ALIGNMENT == 0 else None,
        "model_version": "deepseek_v4",
        "cache_dtype_str": layout.encoding.value,
    }
    if layout.window is None:
        return MLAAttentionSpec(tokens_per_state=layout.tokens_per_row, **common)
    if in_flight is None:
        return SlidingWindowMLASpec(sliding_window=layout.window, **common)
    from dsv4_rocm.cache.managers import CompressorStateSpec, WindowSpec

    common |= {
        "sliding_window": layout.window,
        "rollback_tokens": in_flight.rollback_tokens,
        "batches": in_flight.batches,
        "early": in_flight.early,
    }
    if layout.kind in STATE_KINDS:
        return CompressorStateSpec(ratio=Retention.of(layout).ratio, **common)
    return WindowSpec(**common)


def as_draft(spec: Any) -> Any:
    """The KVCacheSpec of a draft's cache: marked where vLLM has a mark; else vLLM finds it as the last layer's."""
    return replace(spec, is_draft=True) if any(field.name == "is_draft" for field in fields(spec)) else spec
