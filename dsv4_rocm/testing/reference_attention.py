"""Reference model, attention: window, compressor, index selection, with the caches a sequence must keep."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from dsv4_rocm.number_formats import dequantize_fp8, dequantize_mxfp4, quantize_fp8, quantize_mxfp4
from dsv4_rocm.testing.reference_layers import Params, rms_norm, rotate, rotation_frequencies
from dsv4_rocm.testing.tiny_config import TinyConfig

NOPE_GROUP = 64
CacheFormat = Literal["exact", "fp8", "fp8-mxfp4"]  # key rows, index rows where they differ


@dataclass(slots=True)
class CompressorState:
    """What a compressor keeps of one sequence: the last rows (u, g) and the entries it closed."""

    values: Tensor
    gates: Tensor
    entries: Tensor


@dataclass(slots=True)
class LayerCache:
    """What one layer keeps of one sequence between steps; starts empty."""

    window: Tensor | None = None  # [<= 128, 512]
    states: dict[str, CompressorState] = field(default_factory=dict)  # "compressor", "indexer"


def store_key(key: Tensor, rope_size: int, cache: CacheFormat) -> Tensor:
    """A key as it reads back from the cache: [..., 512] -> [..., 512] (model-spec 4.4 and 6).

    "fp8": the 448 unrotated channels round to bf16, then to e4m3 in groups of 64 under a power-of-two scale; the 64
    rotated channels round to bf16.
    """
    if cache == "exact":
        return key
    nope = key[..., :-rope_size].bfloat16()
    stored = dequantize_fp8(*quantize_fp8(nope, NOPE_GROUP))
    return torch.cat([stored, key[..., -rope_size:].bfloat16().float()], -1).to(key.dtype)


def index_key(row: Tensor, cache: CacheFormat) -> Tensor:
    """An index key as it is scored: [..., 128] -> [..., 128]; mxfp4 keys are rotated, as `index_query` is."""
    if cache == "fp8-mxfp4":
        return dequantize_mxfp4(*quantize_mxfp4(_rotated(row))).to(row.dtype)
    return store_index(row, cache)


def index_query(row: Tensor, cache: CacheFormat) -> Tensor:
    """An index query head as it is scored: [..., 128] -> [..., 128]."""
    return store_index(_rotated(row), "fp8") if cache == "fp8-mxfp4" else store_index(row, cache)


def _rotated(row: Tensor) -> Tensor:
    """Times the orthonormal Hadamard matrix of Sylvester's order."""
    butterfly = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=row.dtype) * 0.5**0.5
    matrix = torch.ones(1, 1, dtype=row.dtype)
    while matrix.shape[0] < row.shape[-1]:
        matrix = torch.kron(butterfly, matrix)
    return row @ matrix


def store_index(row: Tensor, cache: CacheFormat) -> Tensor:
    """An index key or query head as it is scored: [..., 128] -> [..., 128]; "fp8" is e4m3 with one scale per row."""
    return row if cache == "exact" else dequantize_fp8(*quantize_fp8(row, row.shape[-1])).to(row.dtype)


def compress(
    config: TinyConfig, x: Tensor, start: int, params: Params, ratio: int, state: CompressorState | None
) -> tuple[CompressorState, Tensor]:
    """Add a chunk to a compressor and close the entries that end in it (model-spec 4.5).

    Args:
        config: the model.
        x: normed layer input [tokens, d] at positions start, start + 1, ...
        start: absolute position of x[0].
        params: the compressor's weights.
        ratio: 4 (overlapping groups, two halves of channels) or 128.
        state: of the previous chunk; None at position 0.

    Returns:
        The state with the new rows (its entries are still the old ones), and the closed entries [new, width], rotated
        at the position of their group's first token.
    """
    groups = 2 if ratio == 4 else 1
    span, width = groups * ratio, len(params["norm.weight"])
    position = torch.arange(start, start + len(x))
    values = params.linear("wkv", x)
    gates = params.linear("wgate", x) + params["ape"][position % ratio]
    entries = x.new_zeros(0, width)
    if state is not None:
        values, gates, entries = torch.cat([state.values, values]), torch.cat([state.gates, gates]), state.entries
    first = start + len(x) - len(values)  # absolute position of row 0
    closing = position[(position + 1) % ratio == 0]
    pooled = [_pool(values, gates, int(end) - span + 1 - first, -first, ratio, groups, width) for end in closing]
    kept = CompressorState(values[-span:], gates[-span:], entries)
    if not pooled:
        return kept, x.new_zeros(0, width)
    normed = rms_norm(torch.stack(pooled), config.rms_norm_eps, params["norm.weight"])
    return kept, rotate(normed, entry_position(closing, ratio), rotation_frequencies(config, compressed=True))


def entry_position(closing: Tensor, ratio: int) -> Tensor:
    """An entry is rotated at the position of its group's first token; `closing` is that of the last."""
    return closing - ratio + 1


def _pool(values: Tensor, gates: Tensor, begin: int, origin: int, ratio: int, groups: int, width: int) -> Tensor:
    """Softmax-weighted sum per channel of rows begin.., where rows before `origin` (position 0) do not exist."""
    row = torch.arange(begin, begin + groups * ratio)
    exists = row >= origin
    value, gate = values[row.clamp_min(0)], gates[row.clamp_min(0)]
    if groups == 2:  # the previous group gives its first half of channels, the current one its second
        value = torch.cat([value[:ratio, :width], value[ratio:, width:]])
        gate = torch.cat([gate[:ratio, :width], gate[ratio:, width:]])
    gate = gate.masked_fill(~exists[:, None], -torch.inf)
    return (torch.softmax(gate, 0) * value).sum(0)


def visible_entries(position: Tensor, count: int, ratio: int) -> Tensor:
    """Entry e is visible to position t if e < (t + 1) // ratio: bool [tokens, count] (model-spec 8)."""
    return torch.arange(count)[None] < ((position + 1) // ratio)[:, None]


def select(config: TinyConfig, scores: Tensor, visible: Tensor) -> Tensor:
    """The index_topk best visible entries of each token: scores, bool [tokens, entries] -> bool [tokens, entries]."""
    count = min(config.index_topk, scores.shape[1])
    best = scores.masked_fill(~visible, -torch.inf).topk(count, -1).indices
    return torch.zeros_like(visible).scatter(1, best, True) & visible


def attend(query: Tensor, key: Tensor, visible: Tensor, sink: Tensor) -> Tensor:
    """Softmax attention with a sink per head and key = value (model-spec 4.7).

    Args:
        query: [tokens, heads, 512].
        key: [keys, 512].
        visible: bool [tokens, keys].
        sink: [heads], one more logit whose value is zero.

    Returns:
        [tokens, heads, 512].
    """
    logit = torch.einsum("thd,kd->thk", query, key) * query.shape[-1] ** -0.5
    logit = logit.masked_fill(~visible[:, None], -torch.inf)
    top = torch.maximum(logit.amax(-1), sink)
    weight = torch.exp(logit - top[..., None])
    total = weight.sum(-1) + torch.exp(sink - top)
    return torch.einsum("thk,kd->thd", weight, key) / total[..., None]


class Attention:
    """One layer's attention over one sequence, chunk by chunk."""

    def __init__(self, config: TinyConfig, ratio: int, params: Params, cache_format: CacheFormat) -> None:
        self.config, self.ratio, self.params, self.cache_format = config, ratio, params, cache_format
        self.frequencies = rotation_frequencies(config, compressed=ratio > 0)

    def forward(self, x: Tensor, start: int, cache: LayerCache) -> Tensor:
        """[tokens, d] at positions start.. -> [tokens, d]; the cache gains the chunk's window rows and entries."""
        config, params = self.config, self.params
        position = torch.arange(start, start + len(x))
        latent = rms_norm(params.linear("wq_a", x), config.rms_norm_eps, params["q_norm.weight"])
        query = params.linear("wq_b", latent).view(len(x), config.num_attention_heads, config.head_dim)
        query = rotate(rms_norm(query, config.rms_norm_eps), position, self.frequencies)
        key, visible = self._window(x, position, cache)
        if self.ratio:
            entries, seen = self._entries(x, latent, position, cache)
            key, visible = torch.cat([key, entries]), torch.cat([visible, seen], 1)
        output = attend(query, key, visible, params["attn_sink"])
        output = rotate(output, position, self.frequencies, inverse=True)
        grouped = output.reshape(len(x), config.o_groups, -1)  # [tokens, groups, heads per group * 512]
        down = params["wo_a.weight"].view(config.o_groups, config.o_lora_rank, -1)
        return params.linear("wo_b", torch.einsum("tgi,gri->tgr", grouped, down).flatten(1))

    def _window(self, x: Tensor, position: Tensor, cache: LayerCache) -> tuple[Tensor, Tensor]:
        config = self.config
        key = rms_norm(self.params.linear("wkv", x), config.rms_norm_eps, self.params["kv_norm.weight"])
        key = self._store(rotate(key, position, self.frequencies))
        if cache.window is not None:
            key = torch.cat([cache.window, key])
        cache.window = key[-config.sliding_window :]
        distance = position[:, None] - torch.arange(int(position[-1]) + 1 - len(key), int(position[-1]) + 1)
        return key, (distance >= 0) & (distance < config.sliding_window)

    def _entries(self, x: Tensor, latent: Tensor, position: Tensor, cache: LayerCache) -> tuple[Tensor, Tensor]:
        entries = self._compress("compressor", self.params.under("compressor"), x, position, cache)
        visible = visible_entries(position, len(entries), self.ratio)
        if self.ratio == 4:
            scores = self._index_scores(x, latent, position, cache)
            visible = select(self.config, scores, visible)
        return entries, visible

    def _index_scores(self, x: Tensor, latent: Tensor, position: Tensor, cache: LayerCache) -> Tensor:
        heads, width = self.config.index_n_heads, self.config.index_head_dim
        params = self.params.under("indexer")
        query = rotate(params.linear("wq_b", latent).view(len(x), heads, width), position, self.frequencies)
        keys = self._compress("indexer", params.under("compressor"), x, position, cache)
        weight = params.linear("weights_proj", x) * (width**-0.5 * heads**-0.5)  # [tokens, heads]
        score = torch.relu(torch.einsum("thd,ed->the", index_query(query, self.cache_format), keys))
        total: Tensor = (score * weight[..., None]).sum(1)
        return total  # [tokens, entries]

    def _compress(self, name: str, params: Params, x: Tensor, position: Tensor, cache: LayerCache) -> Tensor:
        state, closed = compress(self.config, x, int(position[0]), params, self.ratio, cache.states.get(name))
        closed = index_key(closed, self.cache_format) if name == "indexer" else self._store(closed)
        state.entries = torch.cat([state.entries, closed])
        cache.states[name] = state
        return state.entries

    def _store(self, key: Tensor) -> Tensor:
        return store_key(key, self.config.qk_rope_head_dim, self.cache_format)
