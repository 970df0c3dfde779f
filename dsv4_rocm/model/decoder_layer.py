"""One decoder layer: attention and MoE, each between two mixes of the residual streams."""

from torch import Tensor, nn
from vllm.model_executor.layers.layernorm import RMSNorm

from dsv4_rocm.attention.context import LayerContext
from dsv4_rocm.attention.layer import Attention
from dsv4_rocm.model.hyper_connections import HyperConnection
from dsv4_rocm.model.moe import make_moe
from dsv4_rocm.model_spec import LayerSpec


class DecoderLayer(nn.Module):
    """A decoder layer of any kind."""

    def __init__(self, context: LayerContext, layer: LayerSpec, prefix: str) -> None:
        super().__init__()
        spec = context.spec
        self.hc_attn = HyperConnection(spec)
        self.attn_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.attn = Attention(context, layer.kind, f"{prefix}.attn")
        self.hc_ffn = HyperConnection(spec)
        self.ffn_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.ffn = make_moe(context, layer, f"{prefix}.ffn")

    def forward(self, streams: Tensor, token_ids: Tensor) -> Tensor:
        """[tokens, hc_mult, hidden], int [tokens] -> [tokens, hc_mult, hidden]."""
        hidden, post, comb = self.hc_attn.before(streams)
        streams = self.hc_attn.after(self.attn(self.attn_norm(hidden)), streams, post, comb)
        hidden, post, comb = self.hc_ffn.before(streams)
        return self.hc_ffn.after(self.ffn(self.ffn_norm(hidden), token_ids), streams, post, comb)
