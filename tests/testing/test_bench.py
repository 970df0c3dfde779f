"""The benchmark's records: the agreed fields, real figures of a real run, and a table that can be drawn."""

from dataclasses import fields

import pytest
from rich.console import Console

from dsv4_rocm.kernels.selection import OPS
from dsv4_rocm.testing.bench.cases import CASES, measure
from dsv4_rocm.testing.bench.records import Record, render

AGREED = {
    *("op", "impl", "arch", "case", "vgpr", "agpr", "sgpr_spills", "vgpr_spills", "scratch_bytes", "lds_bytes"),
    *("code_bytes", "occupancy", "mfma_cycles", "valu_cycles", "valu_cycles_per_key_64heads"),
    *("bytes_moved", "bytes_minimum", "launches_per_layer"),
}


def test_records_have_the_agreed_fields() -> None:
    assert {field.name for field in fields(Record)} >= AGREED


def test_every_op_is_measured() -> None:
    assert {case.op for case in CASES} == set(OPS)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_a_case_is_measured(arch: str) -> None:
    case = next(case for case in CASES if case.name == "flash-c128a-decode-b1-closing")
    *kernels, total = [record for record in measure(case, arch) if record.impl == "triton"]
    for kernel in kernels:
        assert (kernel.op, kernel.arch, kernel.how) == ("compress_insert", arch, "emulated")
        assert kernel.vgpr > 0
        assert kernel.code_bytes > 0
        assert kernel.vgpr_spills == kernel.sgpr_spills == kernel.scratch_bytes == 0
    assert max(kernel.valu_cycles for kernel in kernels) > 1000
    # 128 rows of 4 KiB are read once; the rest is the token's own row, the entry and the norm.
    assert total.kernel is None
    assert total.bytes_minimum == 128 * 4096
    assert total.bytes_minimum <= total.bytes_moved <= 1.1 * total.bytes_minimum
    console = Console(width=260, record=True)
    console.print(render([*kernels, total]))
    text = console.export_text()
    assert all(kernel.kernel in text for kernel in kernels)
    assert str(total.bytes_moved) in text
