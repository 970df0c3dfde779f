"""What a GPU's memory holds beside the KV pool: weights by how ranks share them, and estimated workspaces."""

import functools
from dataclasses import dataclass

from dsv4_rocm.checkpoint import FP4_GROUP, FP8_BLOCK, Shape, linear_shapes, plain_shapes
from dsv4_rocm.model_spec import HEAD_DIM, ModelSpec

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A product as `--gpu` names it.

    Attributes:
        memory_bytes: what the driver reports as total. vLLM multiplies `--gpu-memory-utilization` with it.
        source: where the number comes from.
    """

    name: str
    arch: str
    memory_bytes: int
    source: str

    @property
    def default_batched_tokens(self) -> int:
        """`--max-num-batched-tokens` that vLLM's server takes when it is left out."""
        return 16_384 if self.memory_bytes >= 160 * GIB else 8_192


_MI300 = "datasheet GB, which drivers of this family report as GiB (a 192 GB MI300X reports 206,141,652,992 B)"
_SMI = "total that nvidia-smi shows for this product, rounded down to 0.1 GiB"
GPUS = {
    gpu.name: gpu
    for gpu in (
        GpuModel("MI325X", "gfx942", 256 * GIB, _MI300),
        GpuModel("MI355X", "gfx950", 288 * GIB, _MI300),
        GpuModel("H200", "sm90", 1404 * GIB // 10, _SMI),
        GpuModel("B200", "sm100", 179 * GIB, _SMI),
        GpuModel(
            "B300",
            "sm103",
            270 * GIB,
            "288 GB of HBM3e less what the driver keeps; an assumption, not read on a machine",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How the GPUs share the model. Experts are split over all of them, by width or (`expert`) by expert.

    Attributes:
        tensor: `--tensor-parallel-size`.
        data: `--data-parallel-size`.
        expert: `--enable-expert-parallel`.
    """

    tensor: int = 1
    data: int = 1
    expert: bool = False

    @property
    def gpus(self) -> int:
        return self.tensor * self.data

    def check(self, spec: ModelSpec) -> None:
        """Refuse what the model cannot be split into.

        Raises:
            ValueError: naming the flag, the value and what to type.
        """
        if self.tensor < 1 or self.data < 1:
            raise ValueError(f"--tp and --dp must be at least 1, got {self.tensor} and {self.data}")
        if spec.o_groups % self.tensor:
            divisors = [n for n in range(1, spec.o_groups + 1) if spec.o_groups % n == 0]
            raise ValueError(
                f"--tp must divide the model's {spec.o_groups} output groups, got {self.tensor}; "
                f"use one of {', '.join(map(str, divisors))}, and --dp for more GPUs"
            )
        if self.expert and self.tensor > 1 and self.data > 1:
            raise ValueError(
                f"--ep with --tp {self.tensor} and --dp {self.data} is sequence-parallel MoE, which is not supported; "
                "set one of the two to 1"
            )
        if self.tensor > 1 and spec.expert_width // self.tensor % FP8_BLOCK:
            raise ValueError(
                f"--tp {self.tensor} leaves {spec.expert_width // self.tensor} of the shared expert's "
                f"{spec.expert_width} channels on a rank, which is no multiple of its {FP8_BLOCK}-wide FP8 blocks; "
                "use a smaller --tp"
            )
        if self.expert and spec.num_experts % self.gpus:
            raise ValueError(f"--ep: {self.gpus} GPUs do not divide {spec.num_experts} experts; use another --gpus")
        if not self.expert and spec.expert_width % (self.gpus * FP4_GROUP):
            raise ValueError(
                f"experts of width {spec.expert_width} cannot be split over {self.gpus} GPUs; add --ep or use fewer"
            )


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of weights on one GPU, without draft layers.

    Attributes:
        experts: routed experts as stored (FP4 with an e8m0 per 32, or FP8 in 128x128 blocks).
        linears: FP8 linears and their block scales.
        wo_a: the grouped output projection, which is kept in bf16.
        rest: embedding, head, compressors, routers, norms, hyper-connections.
    """

    experts: int
    linears: int
    wo_a: int
    rest: int

    @property
    def total(self) -> int:
        return self.experts + self.linears + self.wo_a + self.rest


_OVER_TENSOR_RANKS = ("wq_b", "wo_a", "wo_b")
_FP32_PARTS = ("ape", "attn_sink", "bias")  # and the hyper-connections


@functools.lru_cache(maxsize=32)
def weights_per_gpu(spec: ModelSpec, split: Parallelism) -> Weights:
    """Bytes of weights on one GPU.

    Routed experts are shared by all ranks. Query up-projection, output projections, shared expert, sinks, embedding and
    head are shared by the tensor-parallel ranks. All else, and so everything that makes keys, is on every GPU.
    """
    experts = linears = wo_a = rest = 0
    for name, shape in linear_shapes(spec).items():
        parts = name.split(".")
        if "experts" in parts:
            experts += _fp4_bytes(shape) if spec.expert_dtype == "fp4" else _fp8_bytes(shape)
        elif parts[-1] == "wo_a":
            wo_a += 2 * _count(shape) // split.tensor
        else:
            shared = "shared_experts" in parts or (parts[-1] in _OVER_TENSOR_RANKS and "indexer" not in parts)
            linears += _fp8_bytes(shape) // (split.tensor if shared else 1)
    for name, shape in plain_shapes(spec).items():
        shared = name in ("embed.weight", "head.weight") or name.endswith("attn_sink")
        rest += _plain_bytes(name, shape) // (split.tensor if shared else 1)
    return Weights(experts // split.gpus, linears, wo_a, rest)


def stored_bytes(spec: ModelSpec) -> int:
    """Bytes of the tensors in a published checkpoint: everything as stored, without draft layers."""
    linears = linear_shapes(spec)
    experts_fp4 = spec.expert_dtype == "fp4"
    total = sum(
        _fp4_bytes(shape) if experts_fp4 and ".experts." in name else _fp8_bytes(shape)
        for name, shape in linears.items()
    )
    return total + sum(
        8 * _count(shape) if name.endswith("tid2eid") else _plain_bytes(name, shape)
        for name, shape in plain_shapes(spec).items()
    )


def _count(shape: Shape) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _fp8_bytes(shape: Shape) -> int:
    out, inner = shape
    return out * inner + -(-out // FP8_BLOCK) * -(-inner // FP8_BLOCK)


def _fp4_bytes(shape: Shape) -> int:
    out, inner = shape
    return out * inner // 2 + out * inner // FP4_GROUP


def _plain_bytes(name: str, shape: Shape) -> int:
    """fp32 for what is added or mixed in fp32, int32 for the table of the hash-routed layers, else bf16."""
    last = name.rsplit(".", 1)[-1]
    wide = last in _FP32_PARTS or last == "tid2eid" or last.startswith("hc_")
    return (4 if wide else 2) * _count(shape)


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory a step needs beside weights and KV: an estimate, with the rule it comes from."""

    name: str
    bytes: int
    rule: str


INDEXER_LOGITS_CAP = 512 * MIB  # vLLM's VLLM_SPARSE_INDEXER_MAX_LOGITS_MB
GRAPHS = 1 * GIB
RUNTIME = 3 * GIB // 2


def workspaces(
    spec: ModelSpec, split: Parallelism, batched_tokens: int, seqs: int, length: int, eager: bool
) -> tuple[Workspace, ...]:
    """Estimates of everything but weights and KV on one GPU. None of them was measured on a GPU.

    Args:
        spec: the model.
        split: how the GPUs share it.
        batched_tokens: `--max-num-batched-tokens`.
        seqs: `--max-num-seqs`.
        length: `--max-model-len`.
        eager: `--enforce-eager`.
    """
    entries = -(-length // 4)
    logits = min(INDEXER_LOGITS_CAP, 4 * entries * batched_tokens)
    streams = spec.hc_mult * spec.hidden_size
    heads = spec.num_heads // split.tensor * HEAD_DIM
    inner = spec.expert_width // (1 if split.expert else split.gpus)
    per_token = {
        "streams": 2 * streams * 2 + 2 * streams * 4,  # old and new in bf16, both once in fp32 while they are mixed
        "query and output": 2 * heads * 2,
        "experts": spec.experts_per_token * (spec.hidden_size + 3 * inner) * 2,
    }
    sampler = 2 * 4 * min(seqs, batched_tokens) * spec.vocab_size
    return (
        Workspace(
            "indexer logits",
            logits,
            f"fp32 [tokens, {entries}] in tiles of at most {INDEXER_LOGITS_CAP // MIB} MiB",
        ),
        Workspace(
            "prefill",
            batched_tokens * sum(per_token.values()),
            f"{batched_tokens} tokens x ({', '.join(f'{name} {size:,}' for name, size in per_token.items())}) B",
        ),
        Workspace("sampler", sampler, f"logits of {min(seqs, batched_tokens)} sequences in fp32, twice"),
        Workspace("graphs", 0 if eager else GRAPHS, "an allowance of 1 GiB; 0 with --enforce-eager"),
        Workspace("runtime", RUNTIME, "an allowance of 1.5 GiB for driver context, collectives and allocator"),
    )
