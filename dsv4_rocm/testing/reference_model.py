"""A straight DeepSeek-V4 in plain torch, written from the specification: it judges the kernels and shares none."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from dsv4_rocm.testing.reference_attention import Attention, CacheFormat, LayerCache
from dsv4_rocm.testing.reference_layers import (
    Params,
    enter_sublayer,
    join_streams,
    leave_sublayer,
    moe,
    rms_norm,
)
from dsv4_rocm.testing.tiny_checkpoint import load_dequantized
from dsv4_rocm.testing.tiny_config import TinyConfig, read_config


class ReferenceModel:
    """DeepSeek-V4 over one sequence, in chunks of any length.

    Args:
        config: the model.
        weights: by DeepSeek name, dequantized.
        cache: "exact" keeps keys as computed; "fp8" rounds them as the 584-byte and 132-byte rows do, "fp8-mxfp4" as
            the 584-byte and 68-byte rows do.
        dtype: of all arithmetic, float32 or float64.
    """

    def __init__(
        self,
        config: TinyConfig,
        weights: Mapping[str, Tensor],
        cache: CacheFormat = "exact",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config = config
        self.params = Params({k: v.to(dtype) if v.is_floating_point() else v for k, v in weights.items()})
        self.attention = {
            name: Attention(config, ratio, self.params.under(f"{name}.attn"), cache) for name, ratio in self._layers()
        }

    @classmethod
    def from_checkpoint(cls, directory: str | Path, cache: CacheFormat = "exact") -> "ReferenceModel":
        """The model of a checkpoint in the DeepSeek form, quantized or not."""
        return cls(read_config(Path(directory)), load_dequantized(directory), cache)

    def new_cache(self) -> list[LayerCache]:
        """Empty caches for one sequence, one per decoder layer."""
        return [LayerCache() for _ in self.config.compress_ratios]

    @torch.no_grad()
    def streams(self, ids: Tensor, cache: list[LayerCache], start: int = 0) -> Tensor:
        """Residual streams before the head of one chunk: int64 [tokens] -> [tokens, 4, d]; the caches advance."""
        streams = self.params["embed.weight"][ids][:, None].expand(-1, self.config.hc_mult, -1)
        for layer, layer_cache in enumerate(cache):
            streams = self._block(f"layers.{layer}", streams, ids, start, layer_cache)
        return streams

    @torch.no_grad()
    def streams_after(self, ids: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """Residual streams behind some layers, of a whole sequence: int64 [tokens] -> [tokens, 4, d] each."""
        streams, kept = self.params["embed.weight"][ids][:, None].expand(-1, self.config.hc_mult, -1), {}
        for layer, layer_cache in enumerate(self.new_cache()):
            kept[layer] = streams = self._block(f"layers.{layer}", streams, ids, 0, layer_cache)
        return [kept[layer] for layer in layers]

    @torch.no_grad()
    def head(self, streams: Tensor, stage: str = "") -> Tensor:
        """Logits of streams: [tokens, 4, d] -> [tokens, vocab]; `stage` "mtp.0" uses that stage's mix and norm."""
        params = self.params.under(stage) if stage else self.params
        joined = join_streams(self.config, streams, params)
        return self.params.linear("head", rms_norm(joined, self.config.rms_norm_eps, params["norm.weight"]))

    def logits(self, ids: Tensor | Sequence[int], chunks: Sequence[int] | None = None) -> Tensor:
        """Logits of every position of one sequence.

        Args:
            ids: token ids [tokens].
            chunks: chunk lengths that sum to `tokens`; None: one chunk.

        Returns:
            [tokens, vocab].
        """
        tokens, cache = torch.as_tensor(ids), self.new_cache()
        pieces, start = [], 0
        for length in chunks or [len(tokens)]:
            pieces.append(self.head(self.streams(tokens[start : start + length], cache, start)))
            start += length
        return torch.cat(pieces)

    @torch.no_grad()
    def draft(
        self, streams: Tensor, next_ids: Tensor, start: int = 0, cache: LayerCache | None = None, stage: str = "mtp.0"
    ) -> Tensor:
        """Streams of the serial MTP stage (model-spec 5); `head(..., stage)` gives the draft's logits.

        Args:
            streams: of the target, or of the previous draft step, at positions start.. [tokens, 4, d].
            next_ids: int64 [tokens], the token that follows each of these positions.
            start: absolute position of streams[0].
            cache: of the draft's own window; None: a fresh one.
            stage: prefix of its weights.

        Returns:
            [tokens, 4, d].
        """
        params, eps = self.params.under(stage), self.config.rms_norm_eps
        embedded = params.linear("e_proj", rms_norm(self.params["embed.weight"][next_ids], eps, params["enorm.weight"]))
        carried = params.linear("h_proj", rms_norm(streams, eps, params["hnorm.weight"]))
        return self._block(stage, embedded[:, None] + carried, next_ids, start, cache or LayerCache())

    def _layers(self) -> list[tuple[str, int]]:
        layers = [(f"layers.{layer}", ratio) for layer, ratio in enumerate(self.config.compress_ratios)]
        return layers + [(f"mtp.{stage}", 0) for stage in range(self.config.num_draft_layers)]

    def _block(self, name: str, streams: Tensor, ids: Tensor, start: int, cache: LayerCache) -> Tensor:
        config, params, eps = self.config, self.params.under(name), self.config.rms_norm_eps
        x, post, comb = enter_sublayer(config, streams, params, "hc_attn")
        x = self.attention[name].forward(rms_norm(x, eps, params["attn_norm.weight"]), start, cache)
        streams = leave_sublayer(x, streams, post, comb)
        x, post, comb = enter_sublayer(config, streams, params, "hc_ffn")
        x = moe(config, rms_norm(x, eps, params["ffn_norm.weight"]), ids, params.under("ffn"))
        return leave_sublayer(x, streams, post, comb)
