"""Manifold-constrained hyper-connections: four residual streams, mixed around every sublayer."""

import torch
from torch import Tensor, nn

from dsv4_rocm.linear import parameter
from dsv4_rocm.model_spec import ModelSpec


class HyperConnection(nn.Module):
    """Mixes the streams into a sublayer's input, and the sublayer's output back into the streams."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self._spec = spec
        mixes = (2 + spec.hc_mult) * spec.hc_mult  # pre, post, comb
        self.fn = parameter(mixes, spec.hc_mult * spec.hidden_size)
        self.base = parameter(mixes)
        self.scale = parameter(3)

    def before(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Input of the sublayer, and what `after` needs.

        Args:
            streams: [tokens, hc_mult, hidden].

        Returns:
            The input [tokens, hidden] in the dtype of `streams`; post fp32 [tokens, hc_mult]; comb fp32
            [tokens, hc_mult, hc_mult], columns and rows normalized in turn, columns first.
        """
        spec, n = self._spec, self._spec.hc_mult
        mix = _mix(streams, self.fn, spec.norm_eps)
        pre = torch.sigmoid(mix[:, :n] * self.scale[0] + self.base[:n]) + spec.hc_eps
        post = 2 * torch.sigmoid(mix[:, n : 2 * n] * self.scale[1] + self.base[n : 2 * n])
        comb = (mix[:, 2 * n :] * self.scale[2] + self.base[2 * n :]).view(-1, n, n)
        comb = torch.softmax(comb, -1) + spec.hc_eps
        comb = comb / (comb.sum(1, keepdim=True) + spec.hc_eps)
        for _ in range(spec.hc_sinkhorn_iters - 1):
            comb = comb / (comb.sum(2, keepdim=True) + spec.hc_eps)
            comb = comb / (comb.sum(1, keepdim=True) + spec.hc_eps)
        return _weighted_sum(pre, streams), post, comb

    @staticmethod
    def after(output: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """New streams `X'_k = post_k * o + sum_j comb_jk X_j`: fp32 arithmetic, rounded once."""
        mixed = torch.einsum("tjk,tjd->tkd", comb, streams.float())
        return (post[..., None] * output.float()[:, None] + mixed).to(streams.dtype)


class HyperHead(nn.Module):
    """Merges the streams into one before the final norm."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self._spec = spec
        self.fn = parameter(spec.hc_mult, spec.hc_mult * spec.hidden_size)
        self.base = parameter(spec.hc_mult)
        self.scale = parameter(1)

    def forward(self, streams: Tensor) -> Tensor:
        """[tokens, hc_mult, hidden] -> [tokens, hidden]."""
        mix = _mix(streams, self.fn, self._spec.norm_eps)
        pre = torch.sigmoid(mix * self.scale + self.base) + self._spec.hc_eps
        return _weighted_sum(pre, streams)


def _mix(streams: Tensor, fn: Tensor, eps: float) -> Tensor:
    flat = streams.flatten(1).float()
    return (flat @ fn.T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)


def _weighted_sum(weights: Tensor, streams: Tensor) -> Tensor:
    return (weights[..., None] * streams.float()).sum(1).to(streams.dtype)
