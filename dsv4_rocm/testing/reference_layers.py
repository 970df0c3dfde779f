"""Reference model, the parts without a cache: norms, rotation, mHC streams, routing and experts (model-spec 4)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dsv4_rocm.testing.tiny_config import TinyConfig


@dataclass(frozen=True, slots=True)
class Params:
    """The weights below a name prefix: `params["wkv.weight"]`, `params.under("compressor")`."""

    tensors: Mapping[str, Tensor]
    prefix: str = ""

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.prefix + name]

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def under(self, name: str) -> "Params":
        return Params(self.tensors, f"{self.prefix}{name}.")

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self[f"{name}.weight"].T


def rms_norm(x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    """x * (mean(x^2) + eps)^-1/2 over the last dimension, times `weight` if there is one."""
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight


def rotation_frequencies(config: TinyConfig, compressed: bool) -> Tensor:
    """Angle per position of each channel pair: fp32 [qk_rope_head_dim / 2] (model-spec 4.3).

    Layers with a compressor use compress_rope_theta and YaRN for everything they rotate; the others neither.
    """
    size = config.qk_rope_head_dim
    theta = config.compress_rope_theta if compressed else config.rope_theta
    plain = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    if not compressed:
        return plain

    def channel(turns: float) -> float:
        return size * math.log(config.yarn_original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(channel(config.yarn_beta_fast)), 0)
    high = min(math.ceil(channel(config.yarn_beta_slow)), size - 1)
    ramp = ((torch.arange(size // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / config.yarn_factor * ramp + plain * (1 - ramp)


def rotate(x: Tensor, position: Tensor, frequencies: Tensor, inverse: bool = False) -> Tensor:
    """Turn adjacent pairs of the last channels by position * frequency.

    Args:
        x: [tokens, ..., channels].
        position: int64 [tokens].
        frequencies: from `rotation_frequencies`; the last 2 * len(frequencies) channels turn.
        inverse: turn back.
    """
    angle = (position.float()[:, None] * frequencies).to(x.dtype)  # [tokens, pairs]; the product rounds to fp32
    angle = angle.view(len(x), *[1] * (x.ndim - 2), -1)
    cos, sin = angle.cos(), -angle.sin() if inverse else angle.sin()
    size = 2 * len(frequencies)
    even, odd = x[..., -size::2], x[..., -size + 1 :: 2]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([x[..., :-size], turned], -1)


def mix_outputs(config: TinyConfig, streams: Tensor, function: Tensor) -> Tensor:
    """F x / rms(x) of the flattened streams: [tokens, 4, d], [outputs, 4 d] -> [tokens, outputs] (model-spec 4.1)."""
    flat = streams.flatten(1)
    return (flat @ function.T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + config.rms_norm_eps)


def join_streams(config: TinyConfig, streams: Tensor, params: Params, name: str = "hc_head") -> Tensor:
    """The head's mix: [tokens, 4, d] -> [tokens, d]."""
    mixed = mix_outputs(config, streams, params[f"{name}_fn"])
    pre = torch.sigmoid(mixed * params[f"{name}_scale"][0] + params[f"{name}_base"]) + config.hc_eps
    return (pre[..., None] * streams).sum(1)


def enter_sublayer(config: TinyConfig, streams: Tensor, params: Params, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """mHC before a sublayer: [tokens, 4, d] -> input [tokens, d], post [tokens, 4], comb [tokens, 4, 4]."""
    n, eps = config.hc_mult, config.hc_eps
    scale, base = params[f"{name}_scale"], params[f"{name}_base"]
    mixed = mix_outputs(config, streams, params[f"{name}_fn"])
    pre = torch.sigmoid(mixed[:, :n] * scale[0] + base[:n]) + eps
    post = 2 * torch.sigmoid(mixed[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = torch.softmax((mixed[:, 2 * n :] * scale[2] + base[2 * n :]).view(-1, n, n), -1) + eps
    comb = comb / (comb.sum(1, keepdim=True) + eps)
    for _ in range(config.hc_sinkhorn_iters - 1):
        comb = comb / (comb.sum(2, keepdim=True) + eps)
        comb = comb / (comb.sum(1, keepdim=True) + eps)
    return (pre[..., None] * streams).sum(1), post, comb


def leave_sublayer(output: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """New stream k = post_k * output + sum_j comb[j, k] * stream_j: the sum runs over the first index."""
    return post[..., None] * output[:, None] + torch.einsum("tjk,tjd->tkd", comb, streams)


def route(config: TinyConfig, x: Tensor, ids: Tensor, gate: Params) -> tuple[Tensor, Tensor]:
    """Experts and weights of each token: -> int64 and float [tokens, experts per token] (model-spec 4.9)."""
    score = torch.sqrt(F.softplus(x @ gate["weight"].T))  # [tokens, experts]
    if "tid2eid" in gate:
        chosen = gate["tid2eid"][ids]
    else:
        chosen = (score + gate["bias"]).topk(config.num_experts_per_tok, -1).indices
    weight = score.gather(1, chosen)
    return chosen, weight / weight.sum(-1, keepdim=True) * config.routed_scaling_factor


def expert(config: TinyConfig, x: Tensor, params: Params) -> Tensor:
    """w2(silu(min(w1 x, limit)) * clamp(w3 x, +-limit)): [tokens, d] -> [tokens, d]; the shared expert's too."""
    limit = config.swiglu_limit
    gate, up = params.linear("w1", x), params.linear("w3", x)
    return params.linear("w2", F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit))


def moe(config: TinyConfig, x: Tensor, ids: Tensor, params: Params) -> Tensor:
    """Routed experts plus the shared expert: [tokens, d], int64 [tokens] -> [tokens, d]."""
    chosen, weight = route(config, x, ids, params.under("gate"))
    total = expert(config, x, params.under("shared_experts"))
    for number in range(config.n_routed_experts):
        token, slot = torch.where(chosen == number)
        part = expert(config, x[token], params.under(f"experts.{number}"))
        total = total.index_add(0, token, part * weight[token, slot, None])
    return total
