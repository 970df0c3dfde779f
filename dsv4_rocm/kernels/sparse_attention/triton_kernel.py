"""sparse_attention in Triton: one program per token, head block and split reads both paged fp8 caches in place.

Decode and prefill are the same kernel: its accumulator of 64 heads x 512 channels fills the registers, so a tile of
several tokens has no room, and with a selection each token has keys of its own.
"""

# Triton has no types for what a kernel takes.
# mypy: disable-error-code="no-untyped-def"

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.cache.layout import FP8_GROUP, NOPE_DIM, CacheLayout
from dsv4_rocm.kernels.sparse_attention import tuning
from dsv4_rocm.kernels.triton_common import (
    LOG2E,
    amd_compiler,
    amd_options,
    converts_fnuz,
    require_fp8_rows,
    require_gpu,
    require_rows_of,
    rotate_rows,
    sin_cos,
    turn,
)
from dsv4_rocm.model_spec import HEAD_DIM, ROPE_DIM

LOWEST = tl.constexpr(-1e30)
NO_ENTRIES = 1 << 30  # tokens per entry of a layer without entries: no position closes one
SLACK = tl.constexpr(16.0)  # a weight may pass 1 by 2^16: bf16 weights and fp32 sums have the range

# What changes from step to step must not ask for another compilation.
RUNTIME = ["window_table_stride", "entries_table_stride", "selected_stride", "requests", "tokens", "top_k"]


@triton.jit
def _dequantize(
    row_ptr,
    scale_ptr,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
    KEYS: tl.constexpr,
    GROUP: tl.constexpr,
    FNUZ: tl.constexpr,
):
    """Channels FIRST .. FIRST + COUNT of some keys: bf16 [KEYS, COUNT], exact since e4m3 times a power of two fits."""
    byte = tl.load(row_ptr[:, None] + (FIRST + tl.arange(0, COUNT))[None, :])
    groups: tl.constexpr = COUNT // GROUP
    exponent = tl.load(scale_ptr[:, None] + (FIRST // GROUP + tl.arange(0, groups))[None, :]).to(tl.int32)
    if FNUZ:  # the hardware reads half the value
        value = byte.to(tl.float8e4b8, bitcast=True).to(tl.float32)
        exponent += 1
    else:
        value = byte.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    value = tl.reshape(tl.reshape(value, (KEYS, groups, GROUP)) * scale[:, :, None], (KEYS, COUNT))
    return (value.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _turn_back(x, frequencies_ptr, position, ROPE: tl.constexpr, HEADS: tl.constexpr):
    """Turn rotary channels [ROPE, HEADS] of one token by -position * theta."""
    frequency = tl.load(frequencies_ptr + tl.arange(0, ROPE // 2))
    sine, cosine = sin_cos(position.to(tl.float32) * frequency)
    sine, cosine = sine[:, None], cosine[:, None]
    even, odd = tl.split(tl.permute(tl.reshape(x, (ROPE // 2, 2, HEADS)), (0, 2, 1)))
    turned = tl.join(even * cosine + odd * sine, odd * cosine - even * sine)
    return tl.reshape(tl.permute(turned, (0, 2, 1)), (ROPE, HEADS))


@triton.jit(do_not_specialize=RUNTIME)
def sparse_attention_kernel(
    query_ptr,  # [tokens, heads, 512]
    sink_ptr,  # fp32 [heads]
    positions_ptr,  # int64 [tokens]
    request_ptr,  # int64 [tokens]
    window_ptr,  # uint8 pages of `window_stride` bytes
    window_table_ptr,  # int32 [requests, blocks]
    entries_ptr,  # uint8 pages of `entries_stride` bytes
    entries_table_ptr,  # int32 [requests, blocks]
    selected_ptr,  # int32 [tokens, top_k]
    frequencies_ptr,  # fp32 [32], only to turn back
    out_ptr,  # [splits, tokens, heads, 512], contiguous
    top_ptr,  # fp32 [splits, tokens, heads], only with splits
    total_ptr,  # fp32 [splits, tokens, heads], only with splits
    query_stride,
    window_stride,
    window_table_stride,
    entries_stride,
    entries_table_stride,
    selected_stride,
    requests,
    tokens,
    heads,
    top_k,
    scale,
    DIRECT: tl.constexpr,  # one split: write the result
    TURN: tl.constexpr,  # turn the result back
    WINDOW: tl.constexpr,
    RATIO: tl.constexpr,
    SELECTED: tl.constexpr,
    HEADS: tl.constexpr,
    ALL_HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    MIN_TILES: tl.constexpr,
    LAZY: tl.constexpr,
    WINDOW_SHIFT: tl.constexpr,  # rows of a page as a power of two
    ENTRIES_SHIFT: tl.constexpr,
    DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    NOPE: tl.constexpr,
    GROUP: tl.constexpr,
    FNUZ: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    live = head < heads
    request = tl.load(request_ptr + token)
    position = tl.load(positions_ptr + token).to(tl.int32)
    position = tl.where(request < requests, position, -1)  # padding behind the last request sees nothing
    cell = (split * tokens + token) * heads + head

    window_first = tl.maximum(position - (WINDOW - 1), 0)
    limit = (position + 1) // RATIO
    count = limit
    if SELECTED:
        count = tl.where(limit > 0, top_k, 0)
    window_tiles = tl.cdiv(position + 1 - window_first, KEYS)
    tiles = window_tiles + tl.cdiv(count, KEYS)
    share = tl.maximum(tl.cdiv(tiles, tl.num_programs(2)), MIN_TILES)
    first_tile = tl.minimum(split * share, tiles)
    tiles = tl.minimum(first_tile + share, tiles)

    top = tl.full((HEADS,), LOWEST, tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    a0 = tl.zeros((256, HEADS), tl.float32)
    a1 = tl.zeros((128, HEADS), tl.float32)
    a2 = tl.zeros((64, HEADS), tl.float32)
    a3 = tl.zeros((64, HEADS), tl.float32)

    if tiles > first_tile:
        window_table_ptr += request * window_table_stride
        entries_table_ptr += request * entries_table_stride
        if SELECTED:
            selected_ptr += token * selected_stride
        q_ptr = query_ptr + token * query_stride + head[:, None] * 512
        q_ptr = tl.multiple_of(q_ptr, [1, 16])
        if ALL_HEADS:
            q0 = tl.load(q_ptr + tl.arange(0, 256)[None, :])
            q1 = tl.load(q_ptr + 256 + tl.arange(0, 128)[None, :])
            q2 = tl.load(q_ptr + 384 + tl.arange(0, 64)[None, :])
            q3 = tl.load(q_ptr + 448 + tl.arange(0, 64)[None, :])
        else:
            q0 = tl.load(q_ptr + tl.arange(0, 256)[None, :], mask=live[:, None], other=0.0)
            q1 = tl.load(q_ptr + 256 + tl.arange(0, 128)[None, :], mask=live[:, None], other=0.0)
            q2 = tl.load(q_ptr + 384 + tl.arange(0, 64)[None, :], mask=live[:, None], other=0.0)
            q3 = tl.load(q_ptr + 448 + tl.arange(0, 64)[None, :], mask=live[:, None], other=0.0)
        q0 = q0.to(tl.bfloat16)
        q1 = q1.to(tl.bfloat16)
        q2 = q2.to(tl.bfloat16)
        q3 = q3.to(tl.bfloat16)
        factor = scale * LOG2E
        lane = tl.arange(0, KEYS)

        for tile in range(first_tile, tiles):
            # Rows of this tile: positions or entry ids up to `last`; a missing key reads row `last` and weighs nothing.
            in_window = tile < window_tiles
            place = (tile - window_tiles) * KEYS + lane
            if SELECTED:
                inside = tl.minimum(tl.maximum(place, 0), top_k - 1)
                place = tl.where(place < top_k, tl.load(selected_ptr + inside), -1)
            row = tl.where(in_window, window_first + tile * KEYS + lane, place)
            last = tl.where(in_window, position, limit - 1)
            page_ptr = tl.where(in_window, window_ptr, entries_ptr)
            page_stride = tl.where(in_window, window_stride, entries_stride)
            table_ptr = tl.where(in_window, window_table_ptr, entries_table_ptr)
            shift = tl.where(in_window, WINDOW_SHIFT, ENTRIES_SHIFT)
            scales = tl.where(in_window, DATA_BYTES << WINDOW_SHIFT, DATA_BYTES << ENTRIES_SHIFT)
            known = row.to(tl.uint32, bitcast=True) <= last.to(tl.uint32, bitcast=True)
            row = tl.where(known, row, last)
            block = tl.load(table_ptr + (row >> shift)).to(tl.int64)
            inside = row & ((1 << shift) - 1)
            page_ptr = page_ptr + block * page_stride
            row_ptr = page_ptr + inside * DATA_BYTES
            scale_ptr = page_ptr + (scales + inside * SCALE_BYTES)
            k0 = _dequantize(row_ptr, scale_ptr, 0, 256, KEYS, GROUP, FNUZ)
            k1 = _dequantize(row_ptr, scale_ptr, 256, 128, KEYS, GROUP, FNUZ)
            k2 = _dequantize(row_ptr, scale_ptr, 384, 64, KEYS, GROUP, FNUZ)
            rope_ptr = row_ptr[:, None] + (NOPE + 2 * tl.arange(0, 64))[None, :]
            k3 = tl.load(rope_ptr.to(tl.pointer_type(tl.bfloat16)))

            s = tl.dot(q0, k0.T)
            s = tl.dot(q1, k1.T, s)
            s = tl.dot(q2, k2.T, s)
            s = tl.dot(q3, k3.T, s)
            s = tl.where(known[None, :], s * factor, float("-inf"))  # [HEADS, KEYS]
            best = tl.max(s, 1)
            if LAZY:
                if tl.max(best - top, 0) > SLACK:
                    above = tl.maximum(top, best)
                    fade = tl.exp2(top - above)
                    total = total * fade
                    a0 = a0 * fade[None, :]
                    a1 = a1 * fade[None, :]
                    a2 = a2 * fade[None, :]
                    a3 = a3 * fade[None, :]
                    top = above
            else:
                above = tl.maximum(top, best)
                fade = tl.exp2(top - above)
                total = total * fade
                a0 = a0 * fade[None, :]
                a1 = a1 * fade[None, :]
                a2 = a2 * fade[None, :]
                a3 = a3 * fade[None, :]
                top = above
            p = tl.exp2(s - top[:, None])
            total += tl.sum(p, 1)
            weight = p.to(tl.bfloat16).T  # transposed, so that each wave has channels of its own
            a0 = tl.dot(k0.T, weight, a0)
            a1 = tl.dot(k1.T, weight, a1)
            a2 = tl.dot(k2.T, weight, a2)
            a3 = tl.dot(k3.T, weight, a3)

    if DIRECT:
        sink = tl.load(sink_ptr + head, mask=live, other=0.0) * LOG2E
        above = tl.maximum(top, sink)
        fade = tl.exp2(top - above)
        total = total * fade + tl.where(sink == above, 1.0, tl.exp2(sink - above))  # both may be infinite
        inverse = tl.where(total > 0, fade / total, 0.0)
    else:
        inverse = tl.where(total > 0, 1.0 / total, 0.0)
        tl.store(top_ptr + cell, top, mask=live)
        tl.store(total_ptr + cell, total, mask=live)
        live = live & (tiles > first_tile)
    a3 = a3 * inverse[None, :]
    if DIRECT and TURN:
        a3 = _turn_back(a3, frequencies_ptr, position, 64, HEADS)
    o_ptr = out_ptr + cell[None, :] * 512
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    tl.store(o_ptr + tl.arange(0, 256)[:, None], (a0 * inverse[None, :]).to(dtype), mask=live[None, :])
    tl.store(o_ptr + 256 + tl.arange(0, 128)[:, None], (a1 * inverse[None, :]).to(dtype), mask=live[None, :])
    tl.store(o_ptr + 384 + tl.arange(0, 64)[:, None], (a2 * inverse[None, :]).to(dtype), mask=live[None, :])
    tl.store(o_ptr + 448 + tl.arange(0, 64)[:, None], a3.to(dtype), mask=live[None, :])


@triton.jit(do_not_specialize=["tokens"])
def combine_splits_kernel(
    partial_ptr,  # bf16 [splits, tokens, heads, 512], where the total is not zero
    top_ptr,  # fp32 [splits, tokens, heads]
    total_ptr,  # fp32 [splits, tokens, heads]
    sink_ptr,  # fp32 [heads]
    positions_ptr,  # int64 [tokens]
    frequencies_ptr,  # fp32 [32], only to turn back
    out_ptr,  # [tokens, heads, 512], contiguous
    tokens,
    heads,
    TURN: tl.constexpr,
    ROPE: tl.constexpr,
    SPLITS: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    live = head < heads
    channel = tl.arange(0, 512)[None, :]
    top = tl.load(sink_ptr + head, mask=live, other=0.0) * LOG2E
    total = tl.where(top == float("-inf"), 0.0, 1.0)
    top = tl.maximum(top, LOWEST)
    acc = tl.zeros((HEADS, 512), tl.float32)
    for split in range(SPLITS):
        cell = (split * tokens + token) * heads + head
        part_total = tl.load(total_ptr + cell, mask=live, other=0.0)
        part_top = tl.load(top_ptr + cell, mask=live, other=LOWEST)
        there = live & (part_total > 0)
        part = tl.load(partial_ptr + cell[:, None] * 512 + channel, mask=there[:, None], other=0.0).to(tl.float32)
        above = tl.maximum(top, part_top)
        fade = tl.where(top == above, 1.0, tl.exp2(top - above))  # both may be infinite
        weight = part_total * tl.exp2(part_top - above)
        total = total * fade + weight
        acc = acc * fade[:, None] + part * weight[:, None]
        top = above
    inverse = tl.where(total > 0, 1.0 / total, 0.0)
    acc = acc * inverse[:, None]
    if TURN:
        sine, cosine = turn(frequencies_ptr, tl.load(positions_ptr + token), 512, ROPE)
        acc = rotate_rows(acc, -sine[None, :], cosine[None, :], HEADS, 512)
    cell = token * heads + head
    tl.store(out_ptr + cell[:, None] * 512 + channel, acc, mask=live[:, None])


class Partials(NamedTuple):
    """Where splits leave their results.

    Attributes:
        output: bf16 [splits, tokens, heads, 512].
        top: fp32 [splits, tokens, heads], reference of the weights as a power of two.
        total: fp32 [splits, tokens, heads], sum of the weights.
    """

    output: Tensor
    top: Tensor
    total: Tensor


def partials(splits: int, tokens: int, heads: int, device: torch.device) -> Partials:
    """Memory for `sparse_attention` with that many splits."""
    output = torch.empty((splits, tokens, heads, HEAD_DIM), dtype=torch.bfloat16, device=device)
    top, total = torch.empty((2, splits, tokens, heads), dtype=torch.float32, device=device)
    return Partials(output, top, total)


def sparse_attention(
    query: Tensor,
    sink: Tensor,
    scale: float,
    batch: TokenBatch,
    window: PagedCache,
    entries: PagedCache | None,
    selected: Tensor | None,
    frequencies: Tensor | None = None,
    splits: int | None = None,
) -> Tensor:
    """See `op.SparseAttention`. fp8 rows only; queries and weights take part as bf16.

    Args:
        query: [tokens, heads, 512].
        sink: fp32 [heads].
        scale: 512^(-1/2).
        batch: the tokens.
        window: the SWA cache.
        entries: the cache of entries, None for SWA layers.
        selected: int32 [tokens, k] or None.
        frequencies: fp32 [32] or None.
        splits: parts that the keys of a token are split into; None takes what `tuning` computes.

    Raises:
        ValueError: rows are not fp8 or not aligned to 16 bytes, an argument is not contiguous, or there is no GPU.
    """
    arch = require_gpu()
    require_rows_of("sparse_attention", query=query, sink=sink)
    if query.stride(1) != HEAD_DIM or query.stride(0) % 8:
        raise ValueError(f"sparse_attention: the heads of a token must be contiguous, got strides {query.stride()}")
    for cache in (window, entries):
        if cache is not None:
            _require_aligned_rows(cache)
    if selected is not None and selected.shape[1] == 0:
        entries, selected = None, None
    tokens, heads, _ = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if tokens == 0:
        return out
    block = tuning.head_block(arch, heads)
    chosen = tuning.settings(arch, block)
    blocks = triton.cdiv(heads, block)
    if splits is None:
        most_keys = _most_keys(window, entries, selected)
        splits = tuning.splits(arch, tokens, heads, blocks, most_keys, window.layout)
    parts = partials(splits, tokens, heads, query.device) if splits > 1 else Partials(out, out, out)
    grid = (tokens, blocks, splits)
    _attend(grid, chosen, block, query, sink, scale, batch, window, entries, selected, frequencies, parts)
    if splits > 1:
        combine_splits_kernel[(tokens, triton.cdiv(heads, tuning.COMBINED_HEADS))](
            parts.output,
            parts.top,
            parts.total,
            sink,
            batch.positions,
            sink if frequencies is None else frequencies,
            out,
            tokens,
            heads,
            TURN=frequencies is not None,
            ROPE=ROPE_DIM,
            SPLITS=splits,
            HEADS=tuning.COMBINED_HEADS,
        )
    return out


def _attend(
    grid: tuple[int, int, int],
    chosen: tuning.Settings,
    block: int,
    query: Tensor,
    sink: Tensor,
    scale: float,
    batch: TokenBatch,
    window: PagedCache,
    entries: PagedCache | None,
    selected: Tensor | None,
    frequencies: Tensor | None,
    parts: Partials,
) -> None:
    tokens, heads, _ = query.shape
    layout = window.layout
    other = window if entries is None else entries  # never read without entries
    ids = batch.positions if selected is None else selected
    with amd_compiler(chosen.async_copy, chosen.buffer_ops):
        sparse_attention_kernel[grid](
            query,
            sink,
            batch.positions,
            batch.request,
            window.pages,
            window.block_table,
            other.pages,
            other.block_table,
            ids,
            sink if frequencies is None else frequencies,
            parts.output,
            parts.top,
            parts.total,
            query.stride(0),
            window.pages.stride(0),
            window.block_table.stride(0),
            other.pages.stride(0),
            other.block_table.stride(0),
            ids.stride(0),
            window.block_table.shape[0],
            tokens,
            heads,
            0 if selected is None else selected.shape[1],
            scale,
            DIRECT=grid[2] == 1,
            TURN=frequencies is not None,
            WINDOW=layout.window,
            RATIO=NO_ENTRIES if entries is None else entries.layout.tokens_per_row,
            SELECTED=selected is not None,
            HEADS=block,
            ALL_HEADS=heads % block == 0,
            KEYS=chosen.keys,
            MIN_TILES=tuning.MIN_SPLIT_KEYS // chosen.keys,
            LAZY=chosen.lazy,
            WINDOW_SHIFT=_shift(layout),
            ENTRIES_SHIFT=_shift(other.layout),
            DATA_BYTES=layout.data_bytes,
            SCALE_BYTES=layout.scale_bytes,
            NOPE=NOPE_DIM,
            GROUP=FP8_GROUP,
            FNUZ=converts_fnuz(),
            num_warps=chosen.num_warps,
            num_stages=chosen.num_stages,
            **amd_options(matrix_instr_nonkdim=16),
        )


def _most_keys(window: PagedCache, entries: PagedCache | None, selected: Tensor | None) -> int:
    """Upper bound of the keys of a token; the true number is on the device."""
    seen = window.layout.window or 0
    if entries is None:
        return seen
    if selected is not None:
        return seen + selected.shape[1]
    return seen + entries.block_table.shape[1] * entries.layout.rows_per_page


def _shift(layout: CacheLayout) -> int:
    rows = layout.rows_per_page
    if rows & (rows - 1):
        raise ValueError(f"sparse_attention: rows of a page must be a power of two, got {rows}")
    return rows.bit_length() - 1


def _require_aligned_rows(cache: PagedCache) -> None:
    require_fp8_rows("sparse_attention", cache.layout)
    require_rows_of("sparse_attention", pages=cache.pages, block_table=cache.block_table)
    if cache.pages.stride(0) % 16 or cache.pages.data_ptr() % 16:
        raise ValueError(
            f"sparse_attention: pages must lie at multiples of 16 bytes, got a stride of {cache.pages.stride(0)}"
        )
