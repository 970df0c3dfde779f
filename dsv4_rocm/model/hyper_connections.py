"""Manifold-constrained hyper-connections: four residual streams, mixed around every sublayer."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dsv4_rocm.attention.context import LayerContext
from dsv4_rocm.linear import parameter
from dsv4_rocm.model_spec import ModelSpec


class Mix(NamedTuple):
    """How a sublayer's output goes back into the streams.

    Attributes:
        post: fp32 [tokens, hc_mult], the output's share of each stream.
        comb: fp32 [tokens, hc_mult, hc_mult], columns and rows normalized in turn, columns first.
    """

    post: Tensor
    comb: Tensor


class HyperConnection(nn.Module):
    """Mixes the streams into a sublayer's input, and the sublayer's output back into the streams; in plain torch."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self._spec = spec
        mixes = (2 + spec.hc_mult) * spec.hc_mult  # pre, post, comb
        self.fn = parameter(mixes, spec.hc_mult * spec.hidden_size)
        self.base = parameter(mixes)
        self.scale = parameter(3)

    def before(self, streams: Tensor, norm: nn.Module) -> tuple[Tensor, Mix]:
        """[tokens, hc_mult, hidden] -> the normed input of the sublayer [tokens, hidden], and what `after` needs."""
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
        return norm(_weighted_sum(pre, streams)), Mix(post, comb)

    def after(self, output: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        """New streams `X'_k = post_k * o + sum_j comb_jk X_j`: fp32 arithmetic, rounded once."""
        mixed = torch.einsum("tjk,tjd->tkd", mix.comb, streams.float())
        return (mix.post[..., None] * output.float()[:, None] + mixed).to(streams.dtype)

    def between(self, output: Tensor, streams: Tensor, mix: Mix, norm: nn.Module) -> tuple[Tensor, Tensor, Mix]:
        """`after` of the previous sublayer, whose output and mix these are, then `before`: (streams, input, mix)."""
        streams = self.after(output, streams, mix)
        return streams, *self.before(streams, norm)


class FusedHyperConnection(HyperConnection):
    """The same through vLLM's mHC ops, which take AITER's or TileLang's kernels on a GPU where there are any."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        from vllm.model_executor.layers import mhc

        self._pre: Any = mhc.MHCPreOp()
        self._post: Any = mhc.MHCPostOp()
        self._post_pre: Any = mhc.MHCFusedPostPreOp()
        # An AITER without the norm would be passed over for plain torch if it were asked for it.
        aiter_takes_norm = mhc.HAS_AITER_MHC_PRE_NORM and mhc.HAS_AITER_MHC_FUSED_NORM
        self._norm_in_kernel = aiter_takes_norm if mhc.HAS_AITER_MHC else mhc.HAS_TILELANG_MHC

    def before(self, streams: Tensor, norm: nn.Module) -> tuple[Tensor, Mix]:
        """See `HyperConnection.before`."""
        post, comb, hidden = self._pre(streams, *self._arguments(), **self._norm(norm))
        return self._normed(hidden, norm), Mix(post.squeeze(-1), comb)

    def after(self, output: Tensor, streams: Tensor, mix: Mix) -> Tensor:
        """See `HyperConnection.after`."""
        mixed: Tensor = self._post(output, streams, mix.post[..., None], mix.comb)
        return mixed

    def between(self, output: Tensor, streams: Tensor, mix: Mix, norm: nn.Module) -> tuple[Tensor, Tensor, Mix]:
        """See `HyperConnection.between`; one op."""
        streams, post, comb, hidden = self._post_pre(
            output, streams, mix.post[..., None], mix.comb, *self._arguments(), **self._norm(norm)
        )
        return streams, self._normed(hidden, norm), Mix(post.squeeze(-1), comb)

    def _arguments(self) -> tuple[Any, ...]:
        """fn, scale, base, epsilon of the norm, of the pre weights and of Sinkhorn, factor of post, iterations."""
        spec = self._spec
        epsilons = (spec.norm_eps, spec.hc_eps, spec.hc_eps)
        return (self.fn, self.scale, self.base, *epsilons, 2.0, spec.hc_sinkhorn_iters)

    def _norm(self, norm: Any) -> dict[str, Any]:
        return {"norm_weight": norm.weight, "norm_eps": norm.variance_epsilon} if self._norm_in_kernel else {}

    def _normed(self, hidden: Tensor, norm: nn.Module) -> Tensor:
        return hidden if self._norm_in_kernel else norm(hidden)


def make_hyper_connection(context: LayerContext) -> HyperConnection:
    """The hyper-connection for this server: plain torch on the host, in any dtype, and vLLM's ops elsewhere."""
    return (HyperConnection if context.dequantize_at_load else FusedHyperConnection)(context.spec)


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
