"""The second step of indexer_select in HIP C++: from fp32 scores to the ids of the exact best. Kernels: csrc/topk."""

import ctypes
from typing import Any

import torch
from torch import Tensor

from dsv4_rocm.cache.addressing import TokenBatch
from dsv4_rocm.kernels.hip_runtime import HipKernel

VARIANT = "topk"
SEGMENT = 8192  # kSegment: scores that a workgroup holds in registers
GROUPS = 128  # kGroups
THREADS = 1024


class Params(ctypes.Structure):
    """dsv4::topk::Params; csrc/topk/params.hpp explains the fields."""

    _fields_ = (
        ("scores", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("request", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("maxima", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("width", ctypes.c_int32),
        ("k", ctypes.c_int32),
        ("ratio", ctypes.c_int32),
        ("requests", ctypes.c_int32),
        ("segments", ctypes.c_int32),
    )


SEGMENT_KERNEL = HipKernel(VARIANT, "topk_segment", Params)
MERGE_KERNEL = HipKernel(VARIANT, "topk_merge", Params)


def candidate_words(entries: int, top_k: int) -> int:
    """int32 words of candidates of one token with so many entries: the best and the highest scores of each segment."""
    segments = -(-entries // SEGMENT)
    return segments * (2 * top_k + GROUPS) if segments > 1 else 0


def select_entries(
    scores: Tensor, batch: TokenBatch, first: int, requests: int, ratio: int, out: Tensor, candidates: Tensor
) -> None:
    """See `rounds.SelectEntries`; ids come out in ascending order.

    One launch, two where `width` is over 8,192. No result depends on the order in which workgroups run.

    Raises:
        ValueError: a tensor has another type or is not contiguous, `top_k` is over 8,192, or `candidates` is small.
    """
    (tokens, width), top_k = scores.shape, out.shape[1]
    if scores.dtype is not torch.float32 or scores.stride(1) != 1 or not out.is_contiguous():
        raise ValueError(
            "indexer_select: top-k takes contiguous rows of fp32 scores and a contiguous out, "
            f"got {scores.dtype} with strides {scores.stride()} and {out.stride()}"
        )
    if top_k > SEGMENT:
        raise ValueError(f"indexer_select: top_k must be at most {SEGMENT}, got {top_k}")
    words = candidate_words(width, top_k) * tokens
    if candidates.numel() < words:
        raise ValueError(f"indexer_select: candidates must have {words} words, got {candidates.numel()}")
    if tokens == 0 or top_k == 0:
        return
    segments = max(1, -(-width // SEGMENT))
    kept = tokens * segments * top_k if words else 0
    values: dict[str, Any] = {
        "scores": scores,
        "positions": batch.positions[first:],
        "request": batch.request[first:],
        "keys": candidates[:kept],
        "ids": candidates[kept : 2 * kept],
        "maxima": candidates[2 * kept : words],
        "out": out[first:],
        "stride": scores.stride(0),
        "width": width,
        "k": top_k,
        "ratio": ratio,
        "requests": requests,
        "segments": segments,
    }
    SEGMENT_KERNEL.launch((tokens, segments, 1), THREADS, **values)
    if words:
        MERGE_KERNEL.launch((tokens, 1, 1), THREADS, **values)
