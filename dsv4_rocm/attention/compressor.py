"""The compressor of a c4a or c128a layer, and of a c4a layer's indexer."""

from torch import Tensor, nn
from vllm.model_executor.layers.layernorm import RMSNorm

from dsv4_rocm.attention.backend import CacheModule
from dsv4_rocm.attention.context import LayerContext
from dsv4_rocm.attention.metadata import GroupMetadata
from dsv4_rocm.cache.layout import CacheLayout
from dsv4_rocm.kernels.compress_insert.op import CompressInsert
from dsv4_rocm.kernels.selection import choose
from dsv4_rocm.linear import parameter
from dsv4_rocm.model_spec import LayerKind


def under(name: str, parts: dict[str, int]) -> dict[str, int]:
    """Parts of a child module as parts of its parent."""
    return {f"{name}.{part}": size for part, size in parts.items()}


def within(name: str, projected: dict[str, Tensor]) -> dict[str, Tensor]:
    """What was projected for a child module, by its own names."""
    return {part.removeprefix(f"{name}."): value for part, value in projected.items() if part.startswith(f"{name}.")}


class Compressor(nn.Module):
    """Keeps projected tokens as state and pools them into entries of `entries`. The layer projects; see `parts`."""

    def __init__(
        self, context: LayerContext, kind: LayerKind, entries: CacheModule, state: CacheLayout, prefix: str
    ) -> None:
        super().__init__()
        width = entries.layout.channels
        self.ape = parameter(kind.ratio, kind.overlap * width)
        self.parts = {"wkv": kind.overlap * width, "wgate": kind.overlap * width}
        self.norm = RMSNorm(width, context.spec.norm_eps)
        self.state = CacheModule(state, f"{prefix}.state")
        self._entries = (entries,)  # in a tuple: it is registered where it belongs, not here
        self._compress_insert: CompressInsert = choose("compress_insert", context.arch, context.encodings).chosen.load()

    def forward(self, projected: dict[str, Tensor], frequencies: Tensor, step: dict[str, GroupMetadata]) -> None:
        """Store the tokens' state and write the entries that they close.

        Args:
            projected: `wkv` and `wgate` of the tokens, fp32 [tokens, overlap * width] each.
            frequencies: fp32 [32].
            step: metadata by cache name.
        """
        self._compress_insert(
            projected["wkv"],
            projected["wgate"],
            self.ape,
            self.norm.weight,
            self.norm.variance_epsilon,
            frequencies,
            step[self.state.prefix].batch,
            self.state.paged(step),
            self._entries[0].paged(step),
        )
