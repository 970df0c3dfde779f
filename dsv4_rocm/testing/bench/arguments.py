"""Arguments of every op at a production shape, built in one place per op: a changed contract is one edit here."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv4_rocm.cache.layout import (
    CacheKind,
    CacheLayout,
    Encoding,
    entries_layout,
    index_layout,
    state_layout,
    swa_layout,
)
from dsv4_rocm.cache.rows import write_rows
from dsv4_rocm.kernels.rotary import rotary_frequencies
from dsv4_rocm.kernels.selection import implementations
from dsv4_rocm.kernels.sparse_attention.op import SparseAttention
from dsv4_rocm.model_spec import FLASH, HEAD_DIM, INDEX_HEAD_DIM, PRO, LayerKind, ModelSpec
from dsv4_rocm.testing.paged import Cache, token_batch

Arguments = dict[str, Any]
EPS = 1e-6
FUSES_ROTATION = "frequencies" in inspect.signature(SparseAttention.__call__).parameters


@dataclass(frozen=True, slots=True)
class Rank:
    """One GPU's share of a model.

    Attributes:
        name: readable, `pro-tp8`.
        spec: the model.
        tp_size: tensor-parallel ranks.
    """

    name: str
    spec: ModelSpec
    tp_size: int

    @property
    def heads(self) -> int:
        return self.spec.num_heads // self.tp_size

    @property
    def groups(self) -> int:
        return self.spec.o_groups // self.tp_size


FLASH_TP1, FLASH_TP4, PRO_TP8 = Rank("flash-tp1", FLASH, 1), Rank("flash-tp4", FLASH, 4), Rank("pro-tp8", PRO, 8)
RANKS = (FLASH_TP1, FLASH_TP4, PRO_TP8)


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    """Normal values, the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _filled(layout: CacheLayout, requests: int, first: int, end: int, tokens: int) -> Cache:
    """A cache whose rows first .. end of every request hold normal values; the rest stays poisoned."""
    cache = Cache(layout, requests, tokens)
    for request in range(requests):
        seed = 1 + len(CacheKind) * request + list(CacheKind).index(layout.kind)  # rows like no other tensor's
        values = random(end - first, layout.channels, dtype=torch.float32, seed=seed)
        write_rows(layout, cache.pages, cache.rows(request, torch.arange(first, end)), values)
    return cache


def _scrambled(count: int, page: int = 64) -> Tensor:
    """Ids 0 .. count in an order that a longer list begins with: more keys change nothing for the first ones."""
    generator = torch.Generator().manual_seed(0)
    pages = [first + torch.randperm(page, generator=generator) for first in range(0, count, page)]
    ids = torch.cat([*pages, torch.zeros(0, dtype=torch.int64)])
    return ids[ids < count].int()


def attention(
    rank: Rank, kind: LayerKind, requests: int = 1, drafts: int = 0, entries: int = 0, fill: bool = True
) -> Arguments:
    """sparse_attention of a decode step: the last `1 + drafts` tokens of each request, after `entries` entries.

    Args:
        rank: model and heads.
        kind: the layer's.
        requests: requests of the batch.
        drafts: tokens to verify behind the sampled one.
        entries: visible entries; a c4a layer has all of them selected, in scrambled order.
        fill: write keys to the caches; without, only the shapes are meant.
    """
    tokens = 1 + drafts
    first = max(kind.ratio * entries, 256)
    batch = token_batch(*[(first, tokens)] * requests)
    window = _filled(
        swa_layout(Encoding.FP8), requests, first - 128 if fill else 0, first + tokens if fill else 0, first + 8
    )
    keys, selected = None, None
    if kind is not LayerKind.SWA:
        layout = entries_layout(kind, Encoding.FP8)
        keys = _filled(layout, requests, 0, entries + 1 if fill else 0, first + 256).at(batch)
    if kind is LayerKind.C4A:
        selected = _scrambled(entries).expand(batch.num_tokens, -1).contiguous()
    found: Arguments = {
        "query": random(batch.num_tokens, rank.heads, HEAD_DIM),
        "sink": random(rank.heads, dtype=torch.float32),
        "scale": HEAD_DIM**-0.5,
        "batch": batch,
        "window": window.at(batch),
        "entries": keys,
        "selected": selected,
    }
    return found | ({"frequencies": rotary_frequencies(rank.spec, kind)} if FUSES_ROTATION else {})


def query_insert(rank: Rank, requests: int) -> Arguments:
    """qnorm_rope_insert of a decode step."""
    batch = token_batch(*[(1000, 1)] * requests)
    return {
        "query": random(requests, rank.heads, HEAD_DIM),
        "key": random(requests, HEAD_DIM),
        "positions": batch.positions,
        "frequencies": rotary_frequencies(rank.spec, LayerKind.C4A),
        "norm_eps": EPS,
        "window": Cache(swa_layout(Encoding.FP8), requests, tokens=1088).at(batch),
    }


def compress(
    kind: LayerKind, index: bool, requests: int = 1, closing: bool = True, encoding: Encoding = Encoding.FP8
) -> Arguments:
    """compress_insert of a decode step whose tokens close a group, or do not; index rows in `encoding`."""
    layout = index_layout(encoding) if index else entries_layout(kind, Encoding.FP8)
    state_of = state_layout(kind, Encoding.FP8, index)
    last = 2 * kind.ratio - (1 if closing else 2)
    batch = token_batch(*[(last, 1)] * requests)
    width = kind.overlap * layout.channels
    state = _filled(state_of, requests, 0, last + 1, 2 * kind.ratio)
    return {
        "values": random(requests, width, dtype=torch.float32),
        "gates": random(requests, width, dtype=torch.float32, seed=-1),
        "position_bias": random(kind.ratio, width, dtype=torch.float32),
        "norm_weight": random(layout.channels),
        "norm_eps": EPS,
        "frequencies": rotary_frequencies(FLASH, kind),
        "batch": batch,
        "state": state.at(batch),
        "entries": Cache(layout, requests, tokens=2 * kind.ratio).at(batch),
    }


def index_query(requests: int, first: int = 1000, drafts: int = 0, encoding: Encoding = Encoding.FP8) -> Arguments:
    """indexer_query of a decode step."""
    batch = token_batch(*[(first, 1 + drafts)] * requests)
    tokens = batch.num_tokens
    return {
        "query": random(tokens, FLASH.index_heads, INDEX_HEAD_DIM),
        "weights": random(tokens, FLASH.index_heads, dtype=torch.float32),
        "positions": batch.positions,
        "frequencies": rotary_frequencies(FLASH, LayerKind.C4A),
        "index": index_layout(encoding),
    }


def index_select(
    requests: int,
    entries: int,
    drafts: int = 0,
    top_k: int = FLASH.index_topk,
    encoding: Encoding = Encoding.FP8,
) -> Arguments:
    """indexer_select of a decode step over so many visible entries."""
    first = 4 * entries
    prepared = index_query(requests, first, drafts, encoding)
    batch = token_batch(*[(first, 1 + drafts)] * requests)
    index = _filled(prepared["index"], requests, 0, entries + 1, first + 256)
    query = implementations("indexer_query")[-1].load()(**prepared)
    return {"query": query, "batch": batch, "index": index.at(batch), "top_k": top_k}


def inverse(rank: Rank, requests: int) -> Arguments:
    """inv_rope_quant of a decode step."""
    return {
        "output": random(requests, rank.heads, HEAD_DIM),
        "positions": torch.arange(1000, 1000 + requests),
        "frequencies": rotary_frequencies(rank.spec, LayerKind.C4A),
        "num_groups": rank.groups,
    }
