"""Launches of a decoder layer, counted over the served model on a simulated GPU."""

import pytest

from dsv4_rocm.testing.bench.__main__ import layer_records

MOST = {"swa": 41, "c4a": 56, "c128a": 46}  # a change that adds a launch shows here


@pytest.mark.slow
def test_launches_of_a_layer() -> None:
    for record in layer_records("gfx942"):
        kind = record.case.removesuffix("-decode-b1")
        parts = {name: int(count) for name, count in (part.rsplit(" ", 1) for part in record.remark.split(", "))}
        assert record.launches_per_layer == sum(parts.values())
        assert record.launches_per_layer <= MOST[kind], record.remark
        assert set(parts) >= {"attn: our ops", "ffn: vLLM fused experts"}
