"""Launches of a decoder layer, counted over the served model on a simulated GPU."""

import pytest

from dsv4_rocm.testing.bench.__main__ import layer_records

# Without the hyper-connections in plain torch. A change that adds a launch shows here.
MOST = {"swa": 37, "c4a": 52, "c128a": 42}


@pytest.mark.slow
def test_launches_of_a_layer() -> None:
    for record in layer_records("gfx942"):
        kind = record.case.removesuffix("-decode-b1")
        parts = {name: int(count) for name, count in (part.rsplit(" ", 1) for part in record.remark.split(", "))}
        assert record.launches_per_layer == sum(parts.values())
        mixing = parts["hc_attn: torch"] + parts["hc_ffn: torch"]
        assert record.launches_per_layer - mixing <= MOST[kind], record.remark
