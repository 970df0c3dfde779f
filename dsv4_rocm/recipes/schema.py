"""What a recipe holds: every field typed and checked, no shell strings."""

import datetime
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from dsv4_rocm.arch import Vendor
from dsv4_rocm.cache.gpu_memory import GIB, GpuModel
from dsv4_rocm.recipes.checkpoints import checkpoint
from dsv4_rocm.recipes.products import PRODUCTS, arch_of

THINK_MAX_LEN = 393_216
Flag = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")]
Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Scalar = bool | int | float | str
FlagValue = Scalar | list[int | str] | dict[str, Any]
_SHELL = re.compile(r"[;&|`$<>\n]")


class Part(BaseModel):
    """Unknown fields are errors: a misspelt one would otherwise do nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Status(Part):
    """How far a recipe is known to work.

    Attributes:
        level: `verified`: run on its hardware; `derived`: accepted by parser and planner, not run; `unsupported`:
            refused, kept so that the refusal is checked.
        evidence: what was done to know it; a verified recipe names the report of a run.
        date: of that.
        reason: why an unsupported recipe is not served.
    """

    level: Literal["verified", "derived", "unsupported"]
    evidence: Annotated[list[Annotated[str, StringConstraints(min_length=1)]], Field(min_length=1)]
    date: datetime.date
    reason: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Status":
        if (self.level == "unsupported") != (self.reason is not None):
            raise ValueError("an unsupported recipe, and only that, has a reason")
        if self.level == "verified" and not any(item.startswith("run: ") for item in self.evidence):
            raise ValueError('a verified recipe names its run in the evidence: "run: REPORT"')
        return self


class Hardware(Part):
    """The machine: `gpus` on each of `nodes` machines; `vram_gib` is what the driver reports, rounded down."""

    product: str
    arch: str
    vram_gib: int
    gpus: Annotated[int, Field(ge=1)]
    nodes: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _known(self) -> "Hardware":
        gpu = PRODUCTS.get(self.product)
        if gpu is None:
            raise ValueError(f"product must be one of {', '.join(PRODUCTS)}, got {self.product}")
        expected = (gpu.arch, gpu.memory_bytes // GIB)
        if (self.arch, self.vram_gib) != expected:
            raise ValueError(
                f"{self.product} is {expected[0]} with {expected[1]} GiB, got {self.arch}, {self.vram_gib}"
            )
        return self

    @property
    def gpu(self) -> GpuModel:
        return PRODUCTS[self.product]


class Requires(Part):
    """Versions, as pip writes ranges; `commands` must be on the PATH."""

    vllm: str
    dsv4_rocm: str
    aiter: str | None = None
    packages: list[str] = []
    commands: list[str] = []


class Service(Part):
    """A program that runs beside the server and is started first (a store, a master)."""

    name: Identifier
    argv: Annotated[list[str], Field(min_length=1)]
    env: dict[Variable, str] = {}


class Router(Part):
    """vllm-router in front of a pair."""

    host: str = "127.0.0.1"
    port: int = 30000
    policy: str = "round_robin"
    kv_connector: Literal["mooncake", "nixl"]
    data_parallel_size: Annotated[int, Field(ge=1)] = 1


class Pair(Part):
    """Recipes that serve together: a prefill and a decode server behind a router, or the nodes of one server."""

    members: Annotated[list[Identifier], Field(min_length=2)]
    router: Router | None = None


class Memory(Part):
    """What the plan must come to: a context that is admitted, and requests of it at once."""

    context: Annotated[int, Field(ge=1)] | None = None
    requests: Annotated[float, Field(gt=0)] | None = None


class Sampling(Part):
    """What clients should send."""

    temperature: float = 1.0
    top_p: float = 1.0
    agents_top_p: float = 0.95


class Validation(Part):
    """What `dsv4-rocm validate --recipe` runs: lengths of the needle ladder, modes to probe, GSM8K or not."""

    needle: list[int] = []
    think: list[Literal["non-think", "high", "max"]] = []
    gsm8k: bool = True


class Recipe(Part):
    """One server, or a pair of them."""

    id: Identifier
    title: Annotated[str, StringConstraints(min_length=1)]
    status: Status
    model: str
    hardware: Hardware
    requires: Requires
    env: dict[Variable, str] = {}
    serve: dict[Flag, FlagValue] = {}
    role: Literal["standalone", "prefill", "decode", "head", "worker"] = "standalone"
    services: list[Service] = []
    offload: Literal["simple-cpu", "mooncake-store", "lmcache"] | None = None
    pair: Pair | None = None
    twin: Identifier | None = None
    memory: Memory = Memory()
    sampling: Sampling = Sampling()
    validate_with: Annotated[Validation, Field(alias="validate")] = Validation()
    notes: list[str] = []

    @field_validator("model")
    @classmethod
    def _known_model(cls, name: str) -> str:
        if checkpoint(name) is None:
            raise ValueError(f"expected a repository like deepseek-ai/DeepSeek-V4-Flash-0731, got {name}")
        return name

    @field_validator("serve")
    @classmethod
    def _no_shell(cls, serve: dict[str, FlagValue]) -> dict[str, FlagValue]:
        for flag, value in serve.items():
            if isinstance(value, str) and _SHELL.search(value):
                raise ValueError(f"{flag}: a value, not a piece of shell: {value!r}")
        return serve

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        length = self.serve.get("max-model-len")
        if isinstance(length, int):
            if "max" in self.validate_with.think and length < THINK_MAX_LEN:
                raise ValueError(f"Think Max needs max-model-len {THINK_MAX_LEN} or more, got {length}")
            longest = max(self.validate_with.needle, default=0)
            if longest > length:
                raise ValueError(f"the needle ladder goes to {longest} tokens, but max-model-len is {length}")
        if self.offload is not None and "kv-transfer-config" not in self.serve:
            raise ValueError(f"offload {self.offload} needs serve.kv-transfer-config")
        if self.pair is not None and self.serve:
            raise ValueError("a pair has members, and no serve flags of its own")
        return self

    @property
    def amd(self) -> bool:
        return arch_of(self.hardware.gpu).vendor is Vendor.AMD

    def get(self, flag: str, default: Any = None) -> Any:
        """A serve flag's value."""
        return self.serve.get(flag, default)
