"""One decoder layer: attention and MoE, each between two mixes of the residual streams."""

from torch import Tensor, nn
from vllm.model_executor.layers.layernorm import RMSNorm

from dsv4_rocm.attention.context import LayerContext
from dsv4_rocm.attention.layer import Attention
from dsv4_rocm.model.hyper_connections import make_hyper_connection
from dsv4_rocm.model.moe import make_moe
from dsv4_rocm.model_spec import LayerSpec


class DecoderLayer(nn.Module):
    """A decoder layer of any kind."""

    attention: type[Attention] = Attention

    def __init__(self, context: LayerContext, layer: LayerSpec, prefix: str) -> None:
        super().__init__()
        spec = context.spec
        self.hc_attn = make_hyper_connection(context)
        self.attn_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.attn = self.attention(context, layer.kind, f"{prefix}.attn")
        self.hc_ffn = make_hyper_connection(context)
        self.ffn_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.ffn = make_moe(context, layer, f"{prefix}.ffn")

    def forward(self, streams: Tensor, token_ids: Tensor) -> Tensor:
        """[tokens, hc_mult, hidden], int [tokens] -> [tokens, hc_mult, hidden]."""
        hidden, mix = self.hc_attn.before(streams, self.attn_norm)
        streams, hidden, mix = self.hc_ffn.between(self.attn(hidden), streams, mix, self.ffn_norm)
        return self.hc_ffn.after(self.ffn(hidden, token_ids), streams, mix)
