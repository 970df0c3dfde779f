"""Reference of compress_insert in plain torch."""

import torch
from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch, row_slots
from dsv4_rocm.cache.rows import read_rows, write_rows
from dsv4_rocm.kernels.rotary import rotate


def compress_insert(
    values: Tensor,
    gates: Tensor,
    position_bias: Tensor,
    norm_weight: Tensor,
    norm_eps: float,
    frequencies: Tensor,
    batch: TokenBatch,
    state: PagedCache,
    entries: PagedCache,
) -> None:
    """See `op.CompressInsert`."""
    ratio = entries.layout.tokens_per_row
    rows = torch.cat([values.float(), gates.float() + position_bias[batch.positions % ratio]], 1)
    write_rows(state.layout, state.pages, state.slots, rows)
    closing = torch.where(entries.slots >= 0)[0]
    if closing.numel() == 0:
        return
    ends = batch.positions[closing]
    pooled = _pool(rows, closing, batch, state, ratio)  # [closing, w]
    normed = pooled * torch.rsqrt(pooled.square().mean(-1, keepdim=True) + norm_eps) * norm_weight.float()
    rotated = rotate(normed, ends - ratio + 1, frequencies)
    write_rows(entries.layout, entries.pages, entries.slots[closing], rotated)


def _pool(rows: Tensor, closing: Tensor, batch: TokenBatch, state: PagedCache, ratio: int) -> Tensor:
    """Softmax-weighted sum of the rows of the groups that the tokens `closing` end: -> fp32 [closing, w]."""
    count = 2 * ratio if ratio == 4 else ratio
    back = torch.arange(1 - count, 1, device=closing.device)
    token, position = closing[:, None] + back, batch.positions[closing, None] + back  # [closing, count]
    request = batch.request[closing, None]
    stored = (token < batch.query_start[request]) & (position >= 0)
    slot = row_slots(state.block_table, request, position, state.layout.rows_per_page).where(stored, 0)
    stored_row = read_rows(state.layout, state.pages, slot)
    row = torch.where(stored[..., None], stored_row, rows[token.clamp_min(0)])
    value, gate = row.chunk(2, -1)
    if ratio == 4:
        width = value.shape[-1] // 2
        value = torch.cat([value[:, :ratio, :width], value[:, ratio:, width:]], 1)
        gate = torch.cat([gate[:, :ratio, :width], gate[:, ratio:, width:]], 1)
    dead = (position < 0)[..., None]
    weight = torch.softmax(gate.masked_fill(dead, -torch.inf), 1)
    return torch.where(dead, 0.0, weight * value).sum(1)
