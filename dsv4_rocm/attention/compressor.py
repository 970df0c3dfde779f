"""The compressor of a c4a or c128a layer, and of a c4a layer's indexer."""

from torch import Tensor, nn
from vllm.model_executor.layers.layernorm import RMSNorm

from dsv4_rocm.attention.backend import CacheModule
from dsv4_rocm.attention.context import LayerContext
from dsv4_rocm.attention.metadata import GroupMetadata
from dsv4_rocm.cache.layout import CacheLayout
from dsv4_rocm.kernels.compress_insert.op import CompressInsert
from dsv4_rocm.kernels.selection import choose
from dsv4_rocm.linear import Fp32OutputLinear, parameter
from dsv4_rocm.model_spec import LayerKind


class Compressor(nn.Module):
    """Projects tokens to values and gates, keeps them as state, and pools them into entries of `entries`."""

    def __init__(
        self, context: LayerContext, kind: LayerKind, entries: CacheModule, state: CacheLayout, prefix: str
    ) -> None:
        super().__init__()
        width = entries.layout.channels
        hidden, eps = context.spec.hidden_size, context.spec.norm_eps
        self.ape = parameter(kind.ratio, kind.overlap * width)
        self.wkv = Fp32OutputLinear(hidden, kind.overlap * width)
        self.wgate = Fp32OutputLinear(hidden, kind.overlap * width)
        self.norm = RMSNorm(width, eps)
        self.state = CacheModule(state, f"{prefix}.state")
        self._entries = (entries,)  # in a tuple: it is registered where it belongs, not here
        self._compress_insert: CompressInsert = choose("compress_insert", context.arch, context.encodings).chosen.load()

    def forward(self, hidden: Tensor, frequencies: Tensor, step: dict[str, GroupMetadata]) -> None:
        """[tokens, hidden]: store the tokens' state and write the entries that they close."""
        self._compress_insert(
            self.wkv(hidden),
            self.wgate(hidden),
            self.ape,
            self.norm.weight,
            self.norm.variance_epsilon,
            frequencies,
            step[self.state.prefix].batch,
            self.state.paged(step),
            self._entries[0].paged(step),
        )
