"""A memory plan as text: what `dsv4-rocm plan` prints."""

from collections.abc import Iterator
from dataclasses import replace

from dsv4_rocm.cache.gpu_memory import GIB
from dsv4_rocm.cache.library_limits import out_of_reach
from dsv4_rocm.cache.planner import LENGTHS, Plan, changes, sequence_bytes, v32_style_bytes
from dsv4_rocm.cache.pool import StatePages
from dsv4_rocm.cache.retention import InFlight
from dsv4_rocm.model_spec import LayerKind

_MAX_HELP = 4


def render(plan: Plan) -> str:
    """The report, one fact a line."""
    sections = [_head(plan), _memory(plan), _pool(plan), _request(plan), _concurrency(plan), _outcome(plan)]
    return "\n\n".join("\n".join(section) for section in sections)


def one_line(plan: Plan) -> str:
    """Why a pool of this size holds as many requests of `max_model_len` as it does."""
    request, pool = plan.request, plan.pool
    length = request.max_model_len
    given = "what is left" if request.kv_memory_bytes is None else f"--kv-cache-memory-bytes {request.kv_memory_bytes}"
    columns = zip(pool.groups, pool.columns(length, request.in_flight, request.state_pages), strict=True)
    by_role: dict[str, int] = {}
    for group, blocks in columns:
        by_role[group.role] = by_role.get(group.role, 0) + blocks
    parts = " + ".join(f"{blocks:,} {role}" for role, blocks in by_role.items())
    line = (
        f"{given} is {plan.blocks:,} blocks of {pool.block_bytes:,} B; a request of {length:,} tokens with "
        f"{_flight(request.in_flight)} is charged {plan.request_blocks(length):,} ({parts}), so "
        f"{_per_replica(plan, length):,.1f} fit"
    )
    usual = request.gpu.default_batched_tokens
    if request.in_flight.batched_tokens == usual:
        return line
    other = replace(request.in_flight, batched_tokens=usual)
    blocks = pool.request_blocks(length, other, request.state_pages)
    fit = plan.blocks / blocks
    return f"{line}; at vLLM's default --max-num-batched-tokens {usual} it would be {blocks:,} and {fit:,.1f}"


def _head(plan: Plan) -> Iterator[str]:
    request = plan.request
    split, spec = request.split, request.spec
    kinds = ", ".join(f"{spec.count(kind)} {kind.name.lower()}" for kind in LayerKind if spec.count(kind))
    yield (
        f"{request.label} ({len(spec.layers)} layers: {kinds}) on {split.gpus} x {request.gpu.name} "
        f"({request.gpu.arch}, {request.gpu.memory_bytes / GIB:.1f} GiB each)"
    )
    yield (
        f"--tp {split.tensor} --dp {split.data}{' --ep' if split.expert else ''}, {request.rows.value} key rows, "
        f"{request.index.value} index rows"
    )


def _memory(plan: Plan) -> Iterator[str]:
    weights, request = plan.weights, plan.request
    yield "GiB on each GPU"
    yield _row("weights", weights.total, "without draft layers")
    for name, size, note in (
        ("experts", weights.experts, f"{request.spec.expert_dtype}, over all {request.split.gpus} GPUs"),
        ("FP8 linears", weights.linears, "with block scales"),
        ("wo_a", weights.wo_a, "dequantized to bf16"),
        ("rest", weights.rest, "embedding, head, compressors, routers, norms"),
    ):
        yield _row(f"  {name}", size, note)
    yield _row("workspaces", sum(workspace.bytes for workspace in plan.workspaces), "estimates, not measured")
    for workspace in plan.workspaces:
        yield _row(f"  {workspace.name}", workspace.bytes, workspace.rule)
    if request.kv_memory_bytes is None:
        yield _row("KV pool", plan.kv_bytes, f"rest of {request.utilization:g} of the GPU (--gpu-memory-utilization)")
    else:
        yield _row("KV pool", plan.kv_bytes, f"--kv-cache-memory-bytes; room for {plan.room_bytes / GIB:.2f}")


def _pool(plan: Plan) -> Iterator[str]:
    request, pool = plan.request, plan.pool
    yield f"pool: {plan.blocks:,} blocks of {pool.block_bytes:,} B; each group has a block size of its own"
    charged = pool.columns(request.max_model_len, request.in_flight, request.state_pages)
    for group, columns in zip(pool.groups, charged, strict=True):
        yield (
            f"  {group.role:8} {group.block_tokens:4} tokens a block, {len(group.caches):3} caches, "
            f"{group.bytes_used:>9,} B used, {columns:,} blocks for {request.max_model_len:,} tokens"
        )
    if not plan.blocks:
        return
    yield f"last byte offset {plan.largest_offset:,} ({plan.largest_offset.bit_length()} bits): " + (
        "32-bit offsets reach all of it"
        if plan.first_block_past_32_bits is None
        else f"from block {plan.first_block_past_32_bits} on, a kernel with signed 32-bit byte offsets cannot be used"
    )
    for kernel in out_of_reach(plan.largest_offset + 1):
        yield f"  {kernel.name} ends there ({kernel.source}); the kernels of this package do not"


def _request(plan: Plan) -> Iterator[str]:
    request = plan.request
    length = request.max_model_len
    yield f"a request of {length:,} tokens"
    yield f"  per token            {plan.kv_bytes_per_token:,.2f} B with page padding"
    rows, v32 = sequence_bytes(request.caches, length), v32_style_bytes(len(request.spec.layers), length)
    yield f"  rows only            {rows / GIB:.3f} GiB without state (a bf16 cache in V3.2's style: {v32 / GIB:.3f})"
    yield f"  fixed in decode      {plan.fixed_bytes / GIB:.3f} GiB of windows and states"
    for role in ("window", "state"):
        charge, dense = (plan.charge(role, pages) / GIB for pages in (None, StatePages.DENSE))
        beside = f" ({dense:.3f} with vLLM's own windows)" if request.state_pages is StatePages.GAPPED else ""
        yield f"  {role + ' charge':20} {charge:.3f} GiB with {_flight(request.in_flight)}{beside}"
    yield f"  in all               {plan.request_blocks(length) * plan.pool.block_bytes / GIB:.3f} GiB"


def _concurrency(plan: Plan) -> Iterator[str]:
    replicas = plan.request.split.data
    over = f" over {replicas} replicas" if replicas > 1 else ""
    yield f"requests at once{over} by --max-model-len: as charged | with vLLM's own windows | if all only decode"
    for length in LENGTHS:
        if length > plan.request.spec.max_position:
            continue
        yield (
            f"  {length:>9,}  {plan.concurrency(length):>9,.2f} | {plan.concurrency(length, StatePages.DENSE):>9,.2f} "
            f"| {plan.decoding(length):>9,.2f}"
        )
    yield f"largest context: {plan.max_context:,} tokens"


def _outcome(plan: Plan) -> Iterator[str]:
    length = plan.request.max_model_len
    if plan.blocks:
        yield f"why: {one_line(plan)}"
    if not plan.fits:
        fits = f"--max-model-len {plan.max_context} fits" if plan.max_context else "no context length fits"
        yield f"DOES NOT FIT: {plan.missing_bytes / GIB:.2f} GiB missing on each GPU ({plan.limiting}); {fits}"
    else:
        yield f"fits; limited by: {plan.limiting}"
    for change in changes(plan)[:_MAX_HELP]:
        yield f"would help: {change.flags} -> {change.plan.concurrency(length):,.2f} requests of {length:,} tokens"


def _row(name: str, size: int, note: str) -> str:
    return f"  {name:18} {size / GIB:8.2f}  {note}"


def _flight(flight: InFlight) -> str:
    steps = "" if flight.batches == 1 else f"{flight.batches} x "
    return f"{steps}{flight.batched_tokens:,} tokens in flight"


def _per_replica(plan: Plan, length: int) -> float:
    return plan.concurrency(length) / plan.request.split.data
