"""The benchmark's records: real figures of a real run, and a table that can be drawn."""

import pytest
from rich.console import Console

from dsv4_rocm.testing.bench import CASES, measure, render


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_a_case_is_measured(arch: str) -> None:
    case = next(case for case in CASES if case.name == "flash-c128a-decode-b1-closing")
    store, close = measure(case, arch)
    assert (store.op, store.impl, store.arch) == ("compress_insert", "triton", arch)
    assert 0 < close.vgpr <= 96
    assert 0 < close.code_bytes <= 4096
    assert close.vgpr_spills == close.sgpr_spills == close.scratch_bytes == 0
    # 128 rows of 4 KiB are read once, with what padding of the last load costs.
    assert case.bytes_minimum == 128 * 4096
    assert case.bytes_minimum <= close.bytes_moved <= 1.1 * case.bytes_minimum
    assert close.valu_cycles > 0
    console = Console(width=240, record=True)
    console.print(render([store, close]))
    assert close.kernel in console.export_text()
