"""Every implementation of every op on a device against the reference in fp64 there."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dsv4_rocm.cache.addressing import PagedCache
from dsv4_rocm.cache.rows import read_rows
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.selection import implementations
from dsv4_rocm.number_formats import dequantize_fp8, e4m3_decode
from dsv4_rocm.testing.bench.arguments import Arguments

# A bf16 step is 2^-7 of the power of two below; uniform, over mantissas uniform in 1..2.
BF16_ROUNDING = 2.0**-7 * 12**-0.5 * 0.5**0.5
# Relative rms error that rounding explains. Attention rounds weights, partial results and its result. Rows,
# index queries and quantized output may differ from the reference's by one e4m3 step (2^-3) in one of 1,024 values,
# which fp32 carries over.
ROUNDING = {
    "qnorm_rope_insert": 1.25 * BF16_ROUNDING + 2.0**-8,
    "compress_insert": 2.0**-3 * 2.0**-5,
    "indexer_query": 2.0**-3 * 2.0**-5,
    "indexer_select": 2.0**-8,  # share of ids that differ where scores are equal but for fp32 sums
    "sparse_attention": 1.25 * BF16_ROUNDING * 3**0.5 + 2.0**-12,
    "inv_rope_quant": 2.0**-3 * 2.0**-5,
}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One result of one implementation.

    Attributes:
        op: name of the op.
        impl: implementation.
        case: production shape.
        result: which of the op's results, returned or written to a cache.
        error: relative rms error against the reference in fp64; for ids the share that is not selected there.
        allowed: what rounding explains.
        passed: no NaN where the reference has none, and the error is allowed.
    """

    op: str
    impl: str
    case: str
    result: str
    error: float
    allowed: float
    passed: bool


def moved(value: Any, device: torch.device | str) -> Any:
    """A value with every tensor in it on a device, in memory of its own and with the same strides."""
    if isinstance(value, Tensor):
        flat = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
        copy = flat.to(device, copy=True)
        return copy.as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, IndexQuery):
        return IndexQuery(*(moved(one, device) for one in value))
    if isinstance(value, PagedCache) or (is_dataclass(value) and any(_holds_tensor(value))):
        parts = {field.name: moved(getattr(value, field.name), device) for field in fields(value)}
        return replace(value, **parts)  # type: ignore[type-var]
    if isinstance(value, dict):
        return {key: moved(one, device) for key, one in value.items()}
    return value


def _holds_tensor(value: Any) -> list[bool]:
    return [isinstance(getattr(value, field.name), Tensor) for field in fields(value)]


class Fp64(TorchFunctionMode):
    """Turns what the references compute in fp32 into fp64: they widen with `.float()`."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.float:
            function = Tensor.double
        return function(*args, **(kwargs or {}))


def exact(arguments: Arguments) -> Arguments:
    """The same arguments with activations in fp64, so that nothing is rounded on the way in or out."""
    wide = {}
    for name, value in arguments.items():
        activation = isinstance(value, Tensor) and value.is_floating_point() and name != "frequencies"
        wide[name] = value.double() if activation else value
    return wide


def results(op: str, arguments: Arguments, returned: Any) -> dict[str, Tensor]:
    """What an op computed, as numbers: what it returned, and the rows that it wrote."""
    if op == "qnorm_rope_insert":
        return {"query": returned, "window rows": _rows(arguments["window"])}
    if op == "compress_insert":
        return {"entries": _rows(arguments["entries"])}
    if op == "indexer_query":
        values = e4m3_decode(returned.values) if returned.values.dtype == torch.uint8 else returned.values
        return {"query": values.double() * returned.weights.double()[..., None]}
    if op == "indexer_select":
        return {"ids": returned.sort(-1).values}
    if op == "inv_rope_quant":
        return {"output": dequantize_fp8(returned.values, returned.scales)}
    return {"output": returned}


def _rows(cache: PagedCache) -> Tensor:
    written = cache.slots[cache.slots >= 0]
    return read_rows(cache.layout, cache.pages, written)


def error(got: Tensor, expected: Tensor) -> float:
    """Relative rms error, or the share of ids (int32, sorted) that are not among the expected ones."""
    if got.dtype == torch.int32:
        shared = sum(int(torch.isin(mine, theirs).sum()) for mine, theirs in zip(got, expected, strict=True))
        return 1 - shared / got.numel()
    reference = expected.double()
    scale = reference.square().mean().sqrt()
    return float((got.double() - reference).square().mean().sqrt() / scale)


def check(
    op: str, impl: str, case: str, function: Callable[..., Any], arguments: Arguments, device: torch.device | str
) -> list[Accuracy]:
    """Run an implementation and the reference in fp64 on a device, each on copies of its own.

    Args:
        op: name of the op.
        impl: what the records call the implementation.
        case: what they call the arguments.
        function: the implementation.
        arguments: on the host.
        device: where both run.
    """
    mine, theirs = moved(arguments, device), exact(moved(arguments, device))
    got = results(op, mine, function(**mine))
    with Fp64():
        expected = results(op, theirs, implementations(op)[-1].load()(**theirs))
    found = []
    for name, value in got.items():
        measured = error(value, expected[name].to(value.device))
        passed = measured <= ROUNDING[op]  # False for a NaN
        found.append(Accuracy(op, impl, case, name, measured, ROUNDING[op], passed))
    return found
