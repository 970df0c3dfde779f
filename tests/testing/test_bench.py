"""The benchmark's records: the agreed fields, real figures of a real run, and a table that can be drawn."""

from dataclasses import fields

import pytest
from rich.console import Console

from dsv4_rocm.kernels.selection import OPS
from dsv4_rocm.testing.bench import facts
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
    # 128 rows of 4 KiB are read once, the token's own is read and stored; the rest is the entry and the norm.
    assert total.kernel is None
    assert total.bytes_minimum == (128 + 2) * 4096
    assert total.bytes_minimum <= total.bytes_moved <= 1.1 * total.bytes_minimum
    console = Console(width=260, record=True)
    console.print(render([*kernels, total]))
    text = console.export_text()
    assert all(kernel.kernel in text for kernel in kernels)
    assert str(total.bytes_moved) in text


def test_facts_replace_the_tables_of_a_page(tmp_path) -> None:
    page = tmp_path / "facts.md"
    page.write_text(f"# Facts\n{facts.START}\nold\n{facts.END}\nend\n")
    layer = "c4a-decode-b1"
    parts = "hc_attn: torch 146, attn: our ops 11"
    records = [
        Record(
            op="decoder_layer",
            impl="served",
            arch="gfx942",
            case=layer,
            how="counted",
            launches_per_layer=157,
            remark=parts,
        )
    ]
    facts.update(page, records)
    text = page.read_text()
    assert text.startswith("# Facts\n")
    assert text.endswith("\nend\n")
    assert "old" not in text
    assert f"| gfx942 | {layer} | 157 | {parts} |" in text
    page.write_text("nothing")
    with pytest.raises(ValueError, match="must have the lines"):
        facts.update(page, [])
