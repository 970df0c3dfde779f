"""Reference of sparse_attention in plain torch: one request after the other, bounded tiles of tokens."""

import torch
from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch, row_slots
from dsv4_rocm.cache.rows import read_rows
from dsv4_rocm.kernels.rotary import rotate

TILE_TOKENS = 128


def sparse_attention(
    query: Tensor,
    sink: Tensor,
    scale: float,
    batch: TokenBatch,
    window: PagedCache,
    entries: PagedCache | None,
    selected: Tensor | None,
    frequencies: Tensor | None = None,
) -> Tensor:
    """See `op.SparseAttention`. Rows of a foreign writer need no care here: torch reads 0x80 as -0."""
    out = query.new_zeros(query.shape)
    for request, start, end in batch.spans():
        for first in range(start, end, TILE_TOKENS):
            tile = slice(first, min(first + TILE_TOKENS, end))
            positions = batch.positions[tile]
            keys, visible = _window_keys(window, request, positions)
            if entries is not None:
                chosen = None if selected is None else selected[tile]
                entry_keys, entry_visible = _entry_keys(entries, request, positions, chosen)
                keys, visible = torch.cat([keys, entry_keys]), torch.cat([visible, entry_visible], 1)
            result = attend(query[tile].float(), keys, visible, sink.float(), scale)
            if frequencies is not None:
                result = rotate(result, positions, frequencies, inverse=True)
            out[tile] = result.to(query.dtype)
    return out


def attend(query: Tensor, keys: Tensor, visible: Tensor, sink: Tensor, scale: float) -> Tensor:
    """Softmax attention with a sink: [t, h, d], [n, d], bool [t, n], [h] -> [t, h, d]; invisible keys may be NaN."""
    if keys.shape[0] == 0:
        return torch.zeros_like(query)
    keys = torch.where(visible.any(0)[:, None], keys, 0.0).to(query.dtype)
    logits = torch.einsum("thd,nd->thn", query, keys) * scale
    logits = logits.masked_fill(~visible[:, None], -torch.inf)
    top = torch.maximum(logits.amax(-1), sink).clamp_min(torch.finfo(logits.dtype).min)  # [t, h]; finite without keys
    weight = torch.exp(logits - top[..., None])
    total = weight.sum(-1) + torch.where(sink == top, 1.0, torch.exp(sink - top))  # sink and top may both be inf
    return torch.einsum("thn,nd->thd", weight, keys) / total.clamp_min(torch.finfo(total.dtype).tiny)[..., None]


def _window_keys(window: PagedCache, request: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Keys of all positions that some token of the tile sees, and which token sees which: [n, 512], bool [t, n]."""
    assert window.layout.window is not None
    first = max(int(positions.min()) - window.layout.window + 1, 0)
    seen = torch.arange(first, int(positions.max()) + 1, device=positions.device)
    slots = row_slots(window.block_table, window.block_table.new_tensor(request), seen, window.layout.rows_per_page)
    distance = positions[:, None] - seen
    return read_rows(window.layout, window.pages, slots), (distance >= 0) & (distance < window.layout.window)


def _entry_keys(entries: PagedCache, request: int, positions: Tensor, selected: Tensor | None) -> tuple[Tensor, Tensor]:
    """Keys of all entries that some token of the tile sees, and which token sees which: [n, 512], bool [t, n]."""
    limit = (positions + 1) // entries.layout.tokens_per_row
    ids = torch.arange(int(limit.max()), device=positions.device)
    visible = ids < limit[:, None]
    if selected is not None:
        chosen = torch.zeros(visible.shape[0], visible.shape[1] + 1, dtype=torch.bool, device=positions.device)
        inside = (selected >= 0) & (selected < visible.shape[1])
        chosen.scatter_(1, selected.long().where(inside, visible.shape[1]), True)  # the last column takes the skipped
        visible = visible & chosen[:, :-1]
        ids = torch.where(visible.any(0))[0]
        visible = visible[:, ids]
    slots = row_slots(entries.block_table, entries.block_table.new_tensor(request), ids, entries.layout.rows_per_page)
    return read_rows(entries.layout, entries.pages, slots), visible
