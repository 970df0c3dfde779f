"""DSpark's two peculiarities: what a token of a block sees, and that its drafts are worse if it sees less."""

from pathlib import Path

import pytest
import torch

from dsv4_rocm.cache.layout import Encoding, swa_layout
from dsv4_rocm.cache.rows import write_rows
from dsv4_rocm.kernels.sparse_attention.reference import sparse_attention
from dsv4_rocm.model.dspark import whole_block
from dsv4_rocm.model_spec import HEAD_DIM
from dsv4_rocm.testing.paged import Cache, token_batch
from dsv4_rocm.testing.reference_attention import attend
from dsv4_rocm.testing.reference_dspark import ReferenceDSpark
from dsv4_rocm.testing.reference_model import ReferenceModel
from dsv4_rocm.testing.tiny_checkpoint import write_checkpoint
from dsv4_rocm.testing.tiny_config import ORACLE_DSPARK

WINDOW, SCALE = 128, HEAD_DIM**-0.5


@pytest.mark.parametrize("length", [1, 5, 7])
def test_a_block_sees_itself_and_the_window_before_it(length: int) -> None:
    """Blocks behind 3, 128 and 300 tokens of context; the window does not move on inside a block."""
    generator = torch.Generator().manual_seed(length)
    starts = [3, 128, 300]
    cache = Cache(swa_layout(Encoding.FP32, WINDOW), requests=3, tokens=512)
    keys = [torch.randn(start + length, HEAD_DIM, generator=generator) for start in starts]
    for request, rows in enumerate(keys):
        write_rows(cache.layout, cache.pages, cache.rows(request, torch.arange(len(rows))), rows)
    query = torch.randn(3 * length, 2, HEAD_DIM, generator=generator)
    sink = torch.zeros(2)
    batch = token_batch(*((start, length) for start in starts))
    seen, wide = whole_block(batch, cache.at(batch))
    got = sparse_attention(query, sink, SCALE, seen, wide, None, None)
    for request, (start, rows) in enumerate(zip(starts, keys, strict=True)):
        part, visible = slice(request * length, (request + 1) * length), rows[max(0, start - WINDOW) :]
        expected = attend(query[part], visible, torch.ones(length, len(visible), dtype=torch.bool), sink)
        torch.testing.assert_close(got[part], expected)


def test_blocks_of_different_lengths_are_refused() -> None:
    batch = token_batch((3, 2), (9, 3))
    with pytest.raises(ValueError, match=r"blocks of equal length, at most 8, got starts \[0, 2, 5\]"):
        whole_block(batch, Cache(swa_layout(Encoding.FP32, WINDOW), requests=2).at(batch))


def accepted(draft: ReferenceDSpark, ids: torch.Tensor, first: int) -> int:
    """Tokens accepted over all anchors from `first` on, blocks of three."""
    context, total = draft.context(ids), 0
    for at in range(first, len(ids) - 3):
        right = torch.tensor(draft.draft(context[:at], int(ids[at]), 3)) == ids[at + 1 : at + 4]
        total += int(right.cumprod(0).sum())
    return total


def test_a_causal_window_lowers_acceptance(tmp_path: Path) -> None:
    model = ReferenceModel.from_checkpoint(write_checkpoint(tmp_path / "agreeing", ORACLE_DSPARK, drafts_agree=True))
    ids, cache = torch.arange(100, 240), model.new_cache()
    streams = model.streams(ids, cache)
    for position in range(140, 170):
        ids = torch.cat([ids, model.head(streams[-1:]).argmax(-1)])
        streams = model.streams(ids[-1:], cache, position)
    right, causal = (accepted(ReferenceDSpark(model, causal), ids, 140) for causal in (False, True))
    assert right >= 10
    assert causal <= 0.75 * right
