"""Launches of a decoder layer, counted over the served model on a simulated GPU."""

import pytest

from dsv4_rocm.testing.bench.__main__ import layer_records

# A change that adds a launch shows here. Agreed were 30 (c4a) and 24 (c128a), which need experts that take the shared
# expert with them and linear layers that quantize in the norm before them.
MOST = {"swa": 29, "c4a": 38, "c128a": 33}


@pytest.mark.slow
def test_launches_of_a_layer() -> None:
    for record in layer_records("gfx942"):
        kind = record.case.removesuffix("-decode-b1")
        parts = {name: int(count) for name, count in (part.rsplit(" ", 1) for part in record.remark.split(", "))}
        assert record.launches_per_layer == sum(parts.values())
        assert record.launches_per_layer <= MOST[kind], record.remark
        assert set(parts) >= {"attn: our ops", "ffn: vLLM fused experts"}
