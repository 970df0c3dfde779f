"""LayerContext: what every layer of a server is built from."""

from dataclasses import dataclass
from typing import Any

from dsv4_rocm.arch import GpuArch
from dsv4_rocm.cache.specs import CacheEncodings
from dsv4_rocm.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerContext:
    """Facts shared by all layers.

    Attributes:
        spec: the model.
        arch: the architecture the ops are chosen for.
        encodings: how cache rows are stored.
        quant_config: vLLM's quantization of linear layers, or None where weights are dequantized at load.
        tp_size: tensor-parallel ranks.
    """

    spec: ModelSpec
    arch: GpuArch
    encodings: CacheEncodings
    quant_config: Any | None
    tp_size: int

    def __post_init__(self) -> None:
        for name, value in (("num_attention_heads", self.spec.num_heads), ("o_groups", self.spec.o_groups)):
            if value % self.tp_size:
                raise ValueError(f"--tensor-parallel-size {self.tp_size} must divide {name} ({value})")

    @property
    def dequantize_at_load(self) -> bool:
        return self.quant_config is None
