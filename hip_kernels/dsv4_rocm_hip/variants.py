"""Every code object there is: which source is compiled with which macros. The only place to add one."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Variant:
    """One code object per architecture.

    Attributes:
        op: folder under csrc/; `csrc/<op>/<op>.hip` is compiled.
        name: what the code object is called; it starts with the op.
        defines: "NAME=VALUE" macros.
    """

    op: str
    name: str
    defines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.startswith(self.op):
            raise ValueError(f"variant {self.name} must start with the name of its op, {self.op}")

    @property
    def source(self) -> Path:
        return ROOT / "csrc" / self.op / f"{self.op}.hip"


VARIANTS = (Variant("sparse_attention", "sparse_attention"), Variant("topk", "topk"))
