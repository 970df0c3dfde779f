"""What the compilers make of every kernel as its launcher launches it: registers, spills, shared memory, code."""

import pytest
import torch

from dsv4_rocm import arch
from dsv4_rocm.cache.layout import Encoding, entries_layout, index_layout, state_layout
from dsv4_rocm.kernels.compress_insert.triton_kernel import compress_insert
from dsv4_rocm.model_spec import LayerKind

AMD = ["gfx942", "gfx950"]
ARCHES = [*AMD, "sm90", "sm100"]
FREQUENCIES = torch.ones(32)
MAX_CODE = 32 * 1024


def check(name: str, built: list) -> None:
    """The rules for every kernel."""
    for kernel in built:
        print(  # noqa: T201
            f"FIGURES {kernel.name} {name} registers {kernel.registers} spills {kernel.spills} scratch {kernel.scratch}"
            f" shared {kernel.shared} code {kernel.code}"
        )
        assert kernel.spills == kernel.scratch == 0, kernel.name
        assert kernel.shared <= arch.get(name).shared_bytes
        if name in AMD:
            assert kernel.code <= MAX_CODE


@pytest.mark.parametrize("name", ARCHES)
@pytest.mark.parametrize("kind", ["c4a", "c128a", "index"])
def test_compress_insert(build, make_cache, make_batch, kind: str, name: str) -> None:
    layer = LayerKind.C128A if kind == "c128a" else LayerKind.C4A
    index = kind == "index"
    layout = index_layout(Encoding.FP8) if index else entries_layout(layer, Encoding.FP8)
    batch = make_batch((0, 16))
    state, entries = make_cache(state_layout(layer, Encoding.FP8, index), tokens=16), make_cache(layout, tokens=16)
    width = layer.overlap * layout.channels
    x, ape, weight = torch.zeros(16, width), torch.zeros(layer.ratio, width), torch.ones(layout.channels).bfloat16()
    built = build(
        name,
        lambda: compress_insert(x, x, ape, weight, 1e-6, FREQUENCIES, batch, state.at(batch), entries.at(batch)),
    )
    assert len(built) == 2
    check(name, built)
    if kind == "c128a" and name in AMD:
        close = built[1]
        assert close.registers <= 96
        assert close.code <= 4096
