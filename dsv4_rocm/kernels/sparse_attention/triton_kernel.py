"""sparse_attention in Triton: a program takes all heads of one token, or of the drafts of a request, through its keys.

Both paged fp8 caches are read in place. Decode and prefill are the same kernel: its accumulator of 64 rows x 512
channels fills the registers, so tokens share a read of the keys inside a program only where few heads leave rows free,
and through the L2 otherwise (docs/decisions/0005-drafts-share-keys.md).
"""

# Triton has no types for what a kernel takes.
# mypy: disable-error-code="no-untyped-def"

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_rocm.arch import GpuArch
from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.cache.layout import FP8_GROUP, NOPE_DIM, CacheLayout
from dsv4_rocm.kernels.sparse_attention import tuning
from dsv4_rocm.kernels.sparse_attention.partials import Partials, partials
from dsv4_rocm.kernels.triton_common import (
    LOG2E,
    amd_options,
    converts_fnuz,
    loads_through_registers,
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
NEVER = tl.constexpr(1 << 30)  # no context gets there
SLACK = tl.constexpr(16.0)  # a weight may pass 1 by 2^16: bf16 weights and fp32 sums have the range

# What changes from step to step must not ask for another compilation.
RUNTIME = [
    "window_table_stride",
    "entries_table_stride",
    "selected_stride",
    "requests",
    "tokens",
    "top_k",
    "members",
    "blocks",
    "splits_per_key",
    "splits_at_least",
]


@triton.jit
def _place(members, L2S: tl.constexpr):
    """Group and member of this program: the members of a group, which read the same keys, run close behind one L2."""
    program = tl.program_id(0)
    groups = tl.num_programs(0) // members
    chunk = program // (members * L2S)
    inside = program - chunk * members * L2S
    width = tl.minimum(groups - chunk * L2S, L2S)
    return chunk * L2S + inside % width, inside // width


@triton.jit
def _dequantize(
    row_ptr,
    scale_ptr,
    FIRST: tl.constexpr,
    COUNT: tl.constexpr,
    KEYS: tl.constexpr,
    GROUP: tl.constexpr,
    FNUZ: tl.constexpr,
    SCRUB: tl.constexpr,
):
    """Channels FIRST .. FIRST + COUNT of some keys: bf16 [KEYS, COUNT], exact since e4m3 times a power of two fits."""
    byte = tl.load(row_ptr[:, None] + (FIRST + tl.arange(0, COUNT))[None, :])
    groups: tl.constexpr = COUNT // GROUP
    exponent = tl.load(scale_ptr[:, None] + (FIRST // GROUP + tl.arange(0, groups))[None, :]).to(tl.int32)
    if FNUZ:  # the hardware reads half the value
        value = byte.to(tl.float8e4b8, bitcast=True).to(tl.float32)
        if SCRUB:  # 0x80 is its only NaN
            value = tl.where(value == value, value, 0.0)
        exponent += 1
    else:
        value = byte.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    value = tl.reshape(tl.reshape(value, (KEYS, groups, GROUP)) * scale[:, :, None], (KEYS, COUNT))
    return (value.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _turn_back(x, frequencies_ptr, position, ROPE: tl.constexpr, ROWS: tl.constexpr):
    """Turn rotary channels [ROPE, ROWS] by -position * theta; position: a number, or [1, ROWS]."""
    frequency = tl.load(frequencies_ptr + tl.arange(0, ROPE // 2))[:, None]
    sine, cosine = sin_cos(position.to(tl.float32) * frequency)
    even, odd = tl.split(tl.permute(tl.reshape(x, (ROPE // 2, 2, ROWS)), (0, 2, 1)))
    turned = tl.join(even * cosine + odd * sine, odd * cosine - even * sine)
    return tl.reshape(tl.permute(turned, (0, 2, 1)), (ROPE, ROWS))


@loads_through_registers
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
    out_ptr,  # [tokens, heads, 512], contiguous
    partial_ptr,  # [splits, tokens, heads, 512], only with splits, as all below
    top_ptr,  # fp32 [splits, tokens, heads]
    total_ptr,  # fp32 [splits, tokens, heads]
    parts_ptr,  # int32 [tokens / QUERIES], splits that have keys
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
    members,  # programs of a split that read the same keys: tokens of a request times blocks of heads
    blocks,  # blocks of heads
    scale,
    splits_per_key,  # so many splits are worth it: this times keys, plus the next
    splits_at_least,
    DIRECT: tl.constexpr,  # one split: write the result
    TURN: tl.constexpr,  # turn the result back
    QUERIES: tl.constexpr,  # tokens of a program
    HEADS: tl.constexpr,  # of a token, where a program has several
    WINDOW: tl.constexpr,
    RATIO: tl.constexpr,
    SELECTED: tl.constexpr,
    ROWS: tl.constexpr,  # heads of a program, times QUERIES
    FULL: tl.constexpr,  # no row is left over
    KEYS: tl.constexpr,
    LAZY: tl.constexpr,
    L2S: tl.constexpr,
    WINDOW_SHIFT: tl.constexpr,  # rows of a page as a power of two
    ENTRIES_SHIFT: tl.constexpr,
    DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr,
    NOPE: tl.constexpr,
    GROUP: tl.constexpr,
    FNUZ: tl.constexpr,
    SCRUB: tl.constexpr,
):
    group, member = _place(members, L2S)
    split = tl.program_id(2)
    if QUERIES == 1:
        group = group * (members // blocks) + member // blocks
        token = group.to(tl.int64)
        head = (member % blocks) * ROWS + tl.arange(0, ROWS)
        live = head < heads
        q_row = head * 512
        cell = token * heads + head
        request = tl.load(request_ptr + token)
        position = tl.load(positions_ptr + token).to(tl.int32)
        position = tl.where(request < requests, position, -1)  # padding behind the last request sees nothing
        newest = position
        oldest = position
    else:
        token = group.to(tl.int64) * QUERIES
        head = tl.arange(0, ROWS)
        query = head // HEADS
        live = query < QUERIES
        cell = token * heads + head
        head -= query * HEADS
        q_row = query * query_stride + head * 512
        request = tl.load(request_ptr + token)
        owner = tl.load(request_ptr + token + query, mask=live, other=requests)
        position = tl.load(positions_ptr + token + query, mask=live, other=-1).to(tl.int32)
        position = tl.where(owner < requests, position, -1)  # [ROWS]
        newest = tl.max(position, 0)
        oldest = tl.min(tl.where(position < 0, newest, position), 0)

    window_first = tl.maximum(oldest - (WINDOW - 1), 0)
    limit = (newest + 1) // RATIO
    count = limit
    if SELECTED:
        count = tl.where(limit > 0, top_k, 0)
    window_tiles = tl.cdiv(newest + 1 - window_first, KEYS)
    tiles = window_tiles + tl.cdiv(count, KEYS)
    alone = True
    if DIRECT:
        first_tile = split * tiles  # zero, but a loop known to start there needs registers that are not to be had
    else:
        keys = (newest + 1 - window_first + tl.minimum(count, limit)).to(tl.float32)
        parts = tl.minimum((keys * splits_per_key + splits_at_least).to(tl.int32), tl.num_programs(2))
        share = tl.cdiv(tiles, tl.maximum(parts, 1))
        parts = tl.cdiv(tiles, tl.maximum(share, 1))
        alone = parts <= 1
        if split == 0:
            tl.store(parts_ptr + group, parts)
        if split >= tl.maximum(parts, 1):
            return
        first_tile = split * share
        tiles = tl.minimum(first_tile + share, tiles)

    top = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    a0 = tl.zeros((256, ROWS), tl.float32)
    a1 = tl.zeros((128, ROWS), tl.float32)
    a2 = tl.zeros((64, ROWS), tl.float32)
    a3 = tl.zeros((64, ROWS), tl.float32)

    if tiles > first_tile:
        window_table_ptr += request * window_table_stride
        entries_table_ptr += request * entries_table_stride
        if SELECTED:
            selected_ptr += token * selected_stride
        q_ptr = query_ptr + token * query_stride + q_row[:, None]
        q_ptr = tl.multiple_of(q_ptr, [1, 16])
        if FULL:
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
            last = tl.where(in_window, newest, limit - 1)
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
            k0 = _dequantize(row_ptr, scale_ptr, 0, 256, KEYS, GROUP, FNUZ, SCRUB)
            k1 = _dequantize(row_ptr, scale_ptr, 256, 128, KEYS, GROUP, FNUZ, SCRUB)
            k2 = _dequantize(row_ptr, scale_ptr, 384, 64, KEYS, GROUP, FNUZ, SCRUB)
            rope_ptr = row_ptr[:, None] + (NOPE + 2 * tl.arange(0, 64))[None, :]
            k3 = tl.load(rope_ptr.to(tl.pointer_type(tl.bfloat16)))

            s = tl.dot(q0, k0.T)
            s = tl.dot(q1, k1.T, s)
            s = tl.dot(q2, k2.T, s)
            s = tl.dot(q3, k3.T, s)
            if QUERIES == 1:
                seen = known[None, :]
            else:  # a key is seen from the position that completes it on, a window's for WINDOW positions
                since = tl.where(known, tl.where(in_window, row, row * RATIO + (RATIO - 1)), NEVER)
                span = tl.where(in_window, WINDOW, NEVER).to(tl.uint32)
                seen = (position[:, None] - since[None, :]).to(tl.uint32, bitcast=True) < span
            s = tl.where(seen, s * factor, float("-inf"))  # [ROWS, KEYS]
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

    # A split that is not alone leaves a part: without the sink, not turned.
    sink = tl.load(sink_ptr + head, mask=live, other=0.0) * LOG2E
    if not DIRECT:
        sink = tl.where(alone, sink, float("-inf"))
    above = tl.maximum(top, sink)
    fade = tl.exp2(top - above)
    total = total * fade + tl.where(sink == above, 1.0, tl.exp2(sink - above))  # both may be infinite
    inverse = tl.where(total > 0, fade / total, 0.0)
    a3 = a3 * inverse[None, :]
    if TURN:
        angle = position
        if not DIRECT:
            angle = tl.where(alone, position, 0)
        if QUERIES > 1:
            angle = angle[None, :]
        a3 = _turn_back(a3, frequencies_ptr, angle, 64, ROWS)
    o_ptr = out_ptr
    if not DIRECT:
        cell += tl.where(alone, 0, split.to(tl.int64) * tokens * heads)
        o_ptr = tl.where(alone, out_ptr, partial_ptr)
        if not alone:
            tl.store(top_ptr + cell, above, mask=live)
            tl.store(total_ptr + cell, total, mask=live)
    o_ptr = o_ptr + cell[None, :] * 512
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    tl.store(o_ptr + tl.arange(0, 256)[:, None], (a0 * inverse[None, :]).to(dtype), mask=live[None, :])
    tl.store(o_ptr + 256 + tl.arange(0, 128)[:, None], (a1 * inverse[None, :]).to(dtype), mask=live[None, :])
    tl.store(o_ptr + 384 + tl.arange(0, 64)[:, None], (a2 * inverse[None, :]).to(dtype), mask=live[None, :])
    tl.store(o_ptr + 448 + tl.arange(0, 64)[:, None], a3.to(dtype), mask=live[None, :])


@triton.jit(do_not_specialize=["tokens"])
def combine_splits_kernel(
    partial_ptr,  # [splits, tokens, heads, 512]
    top_ptr,  # fp32 [splits, tokens, heads]
    total_ptr,  # fp32 [splits, tokens, heads]
    parts_ptr,  # int32 [tokens / QUERIES], splits that have keys
    sink_ptr,  # fp32 [heads]
    positions_ptr,  # int64 [tokens]
    frequencies_ptr,  # fp32 [32], only to turn back
    out_ptr,  # [tokens, heads, 512], contiguous
    tokens,
    heads,
    QUERIES: tl.constexpr,
    TURN: tl.constexpr,
    ROPE: tl.constexpr,
    SPLITS: tl.constexpr,  # read at once
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    live = head < heads
    parts = tl.load(parts_ptr + token // QUERIES)
    if parts <= 1:  # the only split has written the result
        return
    channel = tl.arange(0, 512)
    top = tl.load(sink_ptr + head, mask=live, other=0.0) * LOG2E
    total = tl.where(top == float("-inf"), 0.0, 1.0)
    top = tl.maximum(top, LOWEST)
    acc = tl.zeros((HEADS, 512), tl.float32)
    for first in range(0, parts, SPLITS):
        split = first + tl.arange(0, SPLITS)
        there = (split < parts)[:, None] & live[None, :]
        cell = (split[:, None] * tokens + token) * heads + head[None, :]  # [SPLITS, HEADS]
        part_top = tl.load(top_ptr + cell, mask=there, other=LOWEST)
        part_total = tl.load(total_ptr + cell, mask=there, other=0.0)
        part_ptr = partial_ptr + cell[:, :, None] * 512 + channel[None, None, :]
        part = tl.load(part_ptr, mask=there[:, :, None], other=0.0).to(tl.float32)
        above = tl.maximum(top, tl.max(part_top, 0))
        fade = tl.where(top == above, 1.0, tl.exp2(top - above))  # both may be infinite
        weight = part_total * tl.exp2(part_top - above[None, :])
        total = total * fade + tl.sum(weight, 0)
        acc = acc * fade[:, None] + tl.sum(part * weight[:, :, None], 0)
        top = above
    acc = acc * tl.where(total > 0, 1.0 / total, 0.0)[:, None]
    if TURN:
        sine, cosine = turn(frequencies_ptr, tl.load(positions_ptr + token), 512, ROPE)
        acc = rotate_rows(acc, -sine[None, :], cosine[None, :], HEADS, 512)
    o_ptr = out_ptr + (token * heads + head)[:, None] * 512 + channel[None, :]
    tl.store(o_ptr, acc.to(out_ptr.dtype.element_ty), mask=live[:, None])


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
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    tokens, heads, _ = query.shape
    if tokens == 0:
        return out
    work = _work(arch, batch, heads, window, entries, selected, splits)
    parts = Partials(out, out, out, out)  # never touched
    if work.splits.count > 1:
        most = (arch.compute_units or tuning.SOME_UNITS) * work.rows
        parts = partials(query.device, query.dtype, max(most, work.splits.count * tokens * heads))
    _attend(work, query, sink, scale, batch, window, entries, selected, frequencies, out, parts)
    if work.splits.count > 1:
        combine_splits_kernel[(tokens, triton.cdiv(heads, tuning.COMBINED_HEADS))](
            parts.output,
            parts.top,
            parts.total,
            parts.parts,
            sink,
            batch.positions,
            sink if frequencies is None else frequencies,
            out,
            tokens,
            heads,
            QUERIES=work.queries,
            TURN=frequencies is not None,
            ROPE=ROPE_DIM,
            SPLITS=tuning.COMBINED_SPLITS,
            HEADS=tuning.COMBINED_HEADS,
        )
    return out


class Work(NamedTuple):
    """How a batch is divided into programs.

    Attributes:
        settings: how the kernel is compiled.
        queries: tokens of a program.
        rows: rows of a program: heads of each of its tokens.
        blocks: programs for the heads of a token.
        members: neighbouring programs that read the same keys.
        programs: programs of a split.
        splits: parts of the keys.
    """

    settings: tuning.Settings
    queries: int
    rows: int
    blocks: int
    members: int
    programs: int
    splits: tuning.Splits


def _work(
    arch: GpuArch,
    batch: TokenBatch,
    heads: int,
    window: PagedCache,
    entries: PagedCache | None,
    selected: Tensor | None,
    forced: int | None,
) -> Work:
    drafts = batch.tokens_per_request or 1
    queries = tuning.shared_queries(arch, heads, drafts) if selected is None else 1
    rows = tuning.row_block(arch, heads * queries)
    chosen = tuning.settings(arch, rows, queries)
    blocks = triton.cdiv(heads * queries, rows)
    groups = batch.num_tokens // queries
    if forced is None:
        most_keys = _most_keys(window, entries, selected) + queries - 1
        splits = tuning.splits(arch, groups, blocks, heads * queries, most_keys, window.layout, chosen.keys)
    else:
        splits = tuning.Splits(forced, 0.0, float(forced))
    return Work(chosen, queries, rows, blocks, drafts // queries * blocks, groups * blocks, splits)


def _attend(
    work: Work,
    query: Tensor,
    sink: Tensor,
    scale: float,
    batch: TokenBatch,
    window: PagedCache,
    entries: PagedCache | None,
    selected: Tensor | None,
    frequencies: Tensor | None,
    out: Tensor,
    parts: Partials,
) -> None:
    tokens, heads, _ = query.shape
    layout = window.layout
    other = window if entries is None else entries  # never read without entries
    ids = batch.positions if selected is None else selected
    sparse_attention_kernel[(work.programs, 1, work.splits.count)](
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
        out,
        *parts,
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
        work.members,
        work.blocks,
        scale,
        work.splits.per_key,
        work.splits.at_least,
        DIRECT=work.splits.count == 1,
        TURN=frequencies is not None,
        QUERIES=work.queries,
        HEADS=heads if work.queries > 1 else 0,
        WINDOW=layout.window,
        RATIO=NO_ENTRIES if entries is None else entries.layout.tokens_per_row,
        SELECTED=selected is not None,
        ROWS=work.rows,
        FULL=heads * work.queries == work.blocks * work.rows,
        KEYS=work.settings.keys,
        LAZY=work.settings.lazy,
        L2S=tuning.L2S[require_gpu().vendor],
        WINDOW_SHIFT=_shift(layout),
        ENTRIES_SHIFT=_shift(other.layout),
        DATA_BYTES=layout.data_bytes,
        SCALE_BYTES=layout.scale_bytes,
        NOPE=NOPE_DIM,
        GROUP=FP8_GROUP,
        FNUZ=converts_fnuz(),
        SCRUB=converts_fnuz() and (layout.foreign or other.layout.foreign),
        num_warps=work.settings.num_warps,
        num_stages=work.settings.num_stages,
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
