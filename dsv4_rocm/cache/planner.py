"""The memory planner: does a serve command fit, how many requests, what limits them. Arithmetic only, no vLLM."""

from dataclasses import dataclass, replace
from typing import Any

from dsv4_rocm.cache.gpu_memory import GpuModel, Parallelism, Weights, Workspace, weights_per_gpu, workspaces
from dsv4_rocm.cache.layout import STATE_KINDS, CacheLayout, Encoding
from dsv4_rocm.cache.library_limits import out_of_reach
from dsv4_rocm.cache.pool import Pool, StatePages, make_pool
from dsv4_rocm.cache.retention import STEADY_DECODE, InFlight
from dsv4_rocm.cache.specs import CacheEncodings, model_caches
from dsv4_rocm.model_spec import HEAD_DIM, INDEX_HEAD_DIM, ROPE_DIM, ModelSpec

LENGTHS = (8_192, 131_072, 1_048_576)
_WINDOWED = ("window", "state")
_OFFSET_LIMIT = 1 << 31  # bytes that a signed 32-bit offset reaches


@dataclass(frozen=True, slots=True)
class Request:
    """A serve command, as far as memory is concerned.

    Attributes:
        label: how the user names the model.
        spec: the model.
        gpu: which GPU.
        split: how many, and how they share the model.
        max_model_len: `--max-model-len`.
        max_num_seqs: `--max-num-seqs`.
        in_flight: `--max-num-batched-tokens`, and the steps that run at once.
        rows: encoding of key rows.
        index: encoding of index rows.
        kv_memory_bytes: `--kv-cache-memory-bytes`, or None to take what is left.
        utilization: `--gpu-memory-utilization`; without effect when `kv_memory_bytes` is given, as in vLLM.
        eager: `--enforce-eager`.
        state_pages: how windows and states are charged.
    """

    label: str
    spec: ModelSpec
    gpu: GpuModel
    split: Parallelism
    max_model_len: int
    max_num_seqs: int
    in_flight: InFlight
    rows: Encoding = Encoding.FP8
    index: Encoding = Encoding.FP8
    kv_memory_bytes: int | None = None
    utilization: float = 0.9
    eager: bool = False
    state_pages: StatePages = StatePages.GAPPED

    def __post_init__(self) -> None:
        self.split.check(self.spec)
        positive = {
            "--max-num-seqs": self.max_num_seqs,
            "--max-num-batched-tokens": self.in_flight.batched_tokens,
            "--max-model-len": self.max_model_len,
        }
        if self.kv_memory_bytes is not None:
            positive["--kv-cache-memory-bytes"] = self.kv_memory_bytes
        for flag, value in positive.items():
            if value < 1:
                raise ValueError(f"{flag} must be at least 1, got {value}")
        if self.max_model_len > self.spec.max_position:
            limit = self.spec.max_position
            raise ValueError(
                f"--max-model-len must be at most the model's {limit} positions, got {self.max_model_len}; use {limit}"
            )
        if not 0 < self.utilization <= 1:
            raise ValueError(f"--util must be above 0 and at most 1, got {self.utilization}; use 0.9")

    @property
    def caches(self) -> dict[str, CacheLayout]:
        """Layouts of every cache by full name."""
        return model_caches(self.spec, CacheEncodings(self.rows, self.index))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request comes to. All bytes are of one GPU; tensor-parallel ranks hold the same KV.

    Attributes:
        request: what was asked.
        weights: by kind.
        workspaces: estimates.
        pool: groups and block.
        room_bytes: what weights and workspaces leave for the pool; may be negative.
    """

    request: Request
    weights: Weights
    workspaces: tuple[Workspace, ...]
    pool: Pool
    room_bytes: int

    @property
    def kv_bytes(self) -> int:
        """Memory of the pool: what was asked for, else the whole room."""
        given = self.request.kv_memory_bytes
        return self.room_bytes if given is None else given

    @property
    def blocks(self) -> int:
        return max(self.kv_bytes, 0) // self.pool.block_bytes

    @property
    def overcommitted_bytes(self) -> int:
        """How much more than the GPU has is asked for before any request comes."""
        return max(max(self.kv_bytes, 0) - self.room_bytes, 0)

    @property
    def missing_bytes(self) -> int:
        """Memory that lacks to hold everything and one request of `max_model_len`; 0 when the plan fits."""
        # vLLM keeps one block (the null block) for itself.
        one = (1 + self.request_blocks(self.request.max_model_len)) * self.pool.block_bytes
        return max(one - self.kv_bytes, self.overcommitted_bytes, 0)

    @property
    def fits(self) -> bool:
        return self.missing_bytes == 0

    @property
    def max_context(self) -> int:
        """Longest request that the pool admits, up to the model's positions; 0 if there is no room for any."""
        request = self.request
        blocks = max(min(self.kv_bytes, self.room_bytes), 0) // self.pool.block_bytes
        return self.pool.largest_length(blocks, request.spec.max_position, request.in_flight, request.state_pages)

    @property
    def kv_bytes_per_token(self) -> float:
        """Growth of a request: a block of the pool per 256 tokens."""
        (entries,) = {g.block_tokens for g in self.pool.groups if g.role == "entries"} or {0}
        return self.pool.block_bytes / entries if entries else 0.0

    @property
    def fixed_bytes(self) -> int:
        """What a request holds in windows and states while it decodes one token after the other, at any length."""
        request = self.request
        blocks = self.pool.request_blocks(request.spec.max_position, STEADY_DECODE, request.state_pages, _WINDOWED)
        return blocks * self.pool.block_bytes

    def charge(self, role: str, state_pages: StatePages | None = None) -> int:
        """Bytes that a request of `max_model_len` is charged in the groups of a role, with all its tokens in flight."""
        pages = state_pages or self.request.state_pages
        request = self.request
        return (
            self.pool.request_blocks(request.max_model_len, request.in_flight, pages, (role,)) * self.pool.block_bytes
        )

    def request_blocks(self, length: int, state_pages: StatePages | None = None) -> int:
        """Blocks that a request of `length` tokens is charged."""
        pages = state_pages or self.request.state_pages
        return self.pool.request_blocks(length, self.request.in_flight, pages)

    def concurrency(self, length: int, state_pages: StatePages | None = None) -> float:
        """Requests of `length` tokens that fit at once by vLLM's charge, over all data-parallel replicas."""
        return self.request.split.data * self.blocks / self.request_blocks(length, state_pages)

    def decoding(self, length: int) -> float:
        """Requests of `length` tokens whose KV fits while all of them only decode."""
        request = self.request
        return request.split.data * self.blocks / self.pool.request_blocks(length, STEADY_DECODE, request.state_pages)

    @property
    def limiting(self) -> str:
        """What keeps the plan from fitting; else what bounds the requests: their number, or the largest charge."""
        request = self.request
        if self.overcommitted_bytes:
            return "weights and workspaces"
        if not self.fits:
            return "kv memory"
        if self.concurrency(request.max_model_len) >= request.max_num_seqs * request.split.data:
            return "--max-num-seqs"
        charges = {
            "kv entries": self.charge("entries"),
            "window charge of tokens in flight": self.charge("window"),
            "state charge of tokens in flight": self.charge("state"),
        }
        return max(charges, key=lambda name: charges[name])

    @property
    def largest_offset(self) -> int:
        """Last byte offset into the pool: what a kernel's address arithmetic has to hold."""
        return max(self.blocks * self.pool.block_bytes - 1, 0)

    @property
    def first_block_past_32_bits(self) -> int | None:
        """First block that starts beyond a signed 32-bit byte offset, or None if the pool ends before."""
        first = -(-_OFFSET_LIMIT // self.pool.block_bytes)
        return first if first < self.blocks else None


def make_plan(request: Request) -> Plan:
    """Plan a serve command.

    vLLM's rule: the pool takes `--kv-cache-memory-bytes`, or what `--gpu-memory-utilization` of the GPU leaves after
    weights and the peak of a profiling step, which `workspaces` estimates.
    """
    spec, split, gpu = request.spec, request.split, request.gpu
    weights = weights_per_gpu(spec, split)
    batched, seqs = request.in_flight.batched_tokens, request.max_num_seqs
    needed = workspaces(spec, split, batched, seqs, request.max_model_len, request.eager)
    budget = gpu.memory_bytes if request.kv_memory_bytes is not None else int(gpu.memory_bytes * request.utilization)
    room = budget - weights.total - sum(workspace.bytes for workspace in needed)
    return Plan(request, weights, needed, make_pool(request.caches), room)


def sequence_bytes(caches: dict[str, CacheLayout], tokens: int, states: bool = False) -> int:
    """Rows of one sequence without padding, as published figures count them.

    Args:
        caches: layout by full name.
        tokens: length; entries grow with it, windows hold their last rows.
        states: count compressor state too.
    """
    total = 0
    for layout in caches.values():
        if layout.kind in STATE_KINDS and not states:
            continue
        kept = tokens if layout.window is None else min(tokens, layout.window)
        total += kept // layout.tokens_per_row * layout.row_bytes
    return total


def v32_style_bytes(layers: int, tokens: int) -> int:
    """A bf16 cache as DeepSeek-V3.2's: per layer and token a latent of 512 + 64 and an index key of 128."""
    return layers * tokens * (HEAD_DIM + ROPE_DIM + INDEX_HEAD_DIM) * Encoding.BF16.value_bytes


@dataclass(frozen=True, slots=True)
class Change:
    """A flag that would help, and what it gives.

    Attributes:
        flags: what to type.
        plan: the plan with it.
    """

    flags: str
    plan: Plan


def changes(plan: Plan) -> list[Change]:
    """Flags that make a plan fit, or that raise its concurrency at `max_model_len` by 5 % or more.

    Best first; what needs more GPUs comes last.
    """
    length = plan.request.max_model_len
    found = [Change(flags, make_plan(request)) for flags, request in _alternatives(plan.request)]
    if plan.fits:
        found = [change for change in found if change.plan.concurrency(length) >= 1.05 * plan.concurrency(length)]
    found = [change for change in found if change.plan.fits]
    gpus = plan.request.split.gpus
    return sorted(found, key=lambda one: (one.plan.request.split.gpus > gpus, -one.plan.concurrency(length)))


def _alternatives(request: Request) -> list[tuple[str, Request]]:
    flight = request.in_flight
    found: list[tuple[str, Request]] = []
    for tokens in (8_192, 2_048):
        if flight.batched_tokens > tokens:
            fewer = replace(flight, batched_tokens=tokens)
            found.append((f"--max-num-batched-tokens {tokens}", replace(request, in_flight=fewer)))
    if flight.batches > 1:
        found.append(("--no-async-scheduling", replace(request, in_flight=replace(flight, batches=1))))
    if request.rows is not Encoding.FP8:
        found.append(("--kv-cache-dtype fp8", replace(request, rows=Encoding.FP8, index=Encoding.FP8)))
    elif request.index is not Encoding.MXFP4:
        found.append(("--indexer-kv-dtype mxfp4", replace(request, index=Encoding.MXFP4)))
    if request.kv_memory_bytes is not None:
        found.append(("no --kv-cache-memory-bytes", replace(request, kv_memory_bytes=None)))
    elif request.utilization < 0.95:
        found.append(("--gpu-memory-utilization 0.95", replace(request, utilization=0.95)))
    for other in _other_splits(request):
        tensor, data = other.tensor, other.data
        flags = f"--gpus {other.gpus} --tp {tensor} --dp {data}{' --ep' if other.expert else ''}"
        found.append((flags, replace(request, split=other)))
    return found


def _other_splits(request: Request) -> list[Parallelism]:
    """Data parallel over as many GPUs (tensor-parallel ranks hold copies of the KV), and both over more."""
    split = request.split
    wanted = [Parallelism(1, split.gpus, True)] if split.tensor > 1 else []
    more = [gpus for gpus in (2, 4, 8) if gpus > split.gpus]
    wanted += [other for gpus in more for other in (Parallelism(1, gpus, True), Parallelism(gpus, 1, split.expert))]
    usable = []
    for other in wanted:
        try:
            other.check(request.spec)
        except ValueError:
            continue
        usable.append(other)
    return usable


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain values. `limiting` is a name; lengths are keys as text, because JSON has no others."""
    request, pool = plan.request, plan.pool
    pages = {layout.kind.value: layout.padded_page_bytes for layout in request.caches.values()}
    return {
        "model": request.label,
        "gpu": request.gpu.name,
        "gpu_memory_bytes": request.gpu.memory_bytes,
        "tensor_parallel": request.split.tensor,
        "data_parallel": request.split.data,
        "expert_parallel": request.split.expert,
        "fits": plan.fits,
        "missing_bytes": plan.missing_bytes,
        "limiting": plan.limiting,
        "weights_bytes": {
            **{f: getattr(plan.weights, f) for f in ("experts", "linears", "wo_a", "rest")},
            "total": plan.weights.total,
        },
        "workspace_bytes": {workspace.name: workspace.bytes for workspace in plan.workspaces},
        "kv_memory_bytes": plan.kv_bytes,
        "block_bytes": pool.block_bytes,
        "blocks": plan.blocks,
        "page_bytes": pages,
        "group_block_sizes": [group.block_tokens for group in pool.groups],
        "groups": [
            {
                "role": group.role,
                "block_tokens": group.block_tokens,
                "caches": len(group.caches),
                "blocks_per_request": columns,
            }
            for group, columns in zip(
                pool.groups,
                pool.columns(request.max_model_len, request.in_flight, request.state_pages),
                strict=True,
            )
        ],
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "fixed_bytes_per_request": plan.fixed_bytes,
        "window_charge_bytes_per_request": plan.charge("window"),
        "state_charge_bytes_per_request": plan.charge("state"),
        "window_charge_bytes_per_request_dense": plan.charge("window", StatePages.DENSE),
        "state_charge_bytes_per_request_dense": plan.charge("state", StatePages.DENSE),
        "tokens_in_flight": request.in_flight.tokens,
        "max_model_len": request.max_model_len,
        "sequence_bytes": sequence_bytes(request.caches, request.max_model_len),
        "v32_style_sequence_bytes": v32_style_bytes(len(request.spec.layers), request.max_model_len),
        "max_context": plan.max_context,
        "concurrency_at_max_model_len": plan.concurrency(request.max_model_len),
        "concurrency": {str(length): plan.concurrency(length) for length in LENGTHS},
        "concurrency_dense": {str(length): plan.concurrency(length, StatePages.DENSE) for length in LENGTHS},
        "concurrency_decoding": {str(length): plan.decoding(length) for length in LENGTHS},
        "largest_byte_offset": plan.largest_offset,
        "first_block_past_32_bits": plan.first_block_past_32_bits,
        "library_kernels_out_of_reach": [kernel.name for kernel in out_of_reach(plan.largest_offset + 1)],
        "would_help": [change.flags for change in changes(plan)],
    }
