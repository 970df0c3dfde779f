"""The named parts of a row: what stands at which byte of a layout's data and scale parts."""

from dataclasses import dataclass

from dsv4_rocm.cache.layout import (
    FP8_GROUP,
    NOPE_DIM,
    CacheKind,
    CacheLayout,
    Encoding,
    entries_layout,
    index_layout,
    state_layout,
    swa_layout,
)
from dsv4_rocm.model_spec import ROPE_DIM, LayerKind
from dsv4_rocm.number_formats import FP4_GROUP

_VALUE_BYTES = {"e2m1 pairs": 1, "e4m3": 1, "e8m0": 1, "zero": 1, "bf16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive values of one type.

    Attributes:
        name: what they are.
        in_scales: whether they stand in the scale part of a page.
        dtype: `e4m3` (OCP, without 0x80 and NaN), `e2m1 pairs` (the even channel in the low nibble), `e8m0`, `zero` (a
            byte that is 0), `bf16` or `fp32`.
        count: values.
        offset: first byte, from the start of the row's data or scales.
    """

    name: str
    in_scales: bool
    dtype: str
    count: int
    offset: int

    @property
    def num_bytes(self) -> int:
        return self.count * _VALUE_BYTES[self.dtype]


def segments(layout: CacheLayout) -> tuple[Segment, ...]:
    """The parts of one row, data first. They fill the row without gaps.

    Raises:
        ValueError: a layout whose bytes these parts do not fill.
    """
    data, scales = _parts(layout)
    found = (*_placed(data, False), *_placed(scales, True))
    for in_scales, size in ((False, layout.data_bytes), (True, layout.scale_bytes)):
        filled = sum(one.num_bytes for one in found if one.in_scales is in_scales)
        if filled != size:
            part = "scales" if in_scales else "data"
            raise ValueError(
                f"{layout.kind.value} rows in {layout.encoding.value}: the {part} have {size} bytes, "
                f"the known segments fill {filled}; describe the new row in cache/segments.py"
            )
    return found


_Part = tuple[str, str, int]  # name, dtype, count


def _parts(layout: CacheLayout) -> tuple[list[_Part], list[_Part]]:
    kind, wide = layout.kind, layout.encoding.value
    if kind in (CacheKind.C4A_STATE, CacheKind.C128A_STATE, CacheKind.INDEX_STATE):
        half = layout.channels // 2
        return [("projection", "fp32", half), ("gate", "fp32", half)], []
    if kind is CacheKind.INDEX:
        if layout.encoding is Encoding.FP8:
            return [("key", "e4m3", layout.channels)], [("scale", "fp32", 1)]
        if layout.encoding is Encoding.MXFP4:
            return [("key", "e2m1 pairs", layout.channels // 2)], [("exponents", "e8m0", layout.channels // FP4_GROUP)]
        return [("key", wide, layout.channels)], []
    if layout.encoding is Encoding.FP8:
        exponents = ("exponents", "e8m0", NOPE_DIM // FP8_GROUP)
        return [("nope", "e4m3", NOPE_DIM), ("rope", "bf16", ROPE_DIM)], [exponents, ("pad", "zero", 1)]
    return [("nope", wide, NOPE_DIM), ("rope", wide, ROPE_DIM)], []


def _placed(parts: list[_Part], in_scales: bool) -> list[Segment]:
    found: list[Segment] = []
    for name, dtype, count in parts:
        offset = found[-1].offset + found[-1].num_bytes if found else 0
        found.append(Segment(name, in_scales, dtype, count, offset))
    return found


def all_layouts(encoding: Encoding) -> dict[str, CacheLayout]:
    """Every cache of a server with rows of one encoding, by its name in C++; mxfp4 is for index rows alone."""
    if encoding is Encoding.MXFP4:
        return {"Index": index_layout(encoding)}
    return {
        "Swa": swa_layout(encoding),
        "C4aEntries": entries_layout(LayerKind.C4A, encoding),
        "C128aEntries": entries_layout(LayerKind.C128A, encoding),
        "Index": index_layout(encoding),
        "C4aState": state_layout(LayerKind.C4A, encoding),
        "C128aState": state_layout(LayerKind.C128A, encoding),
        "IndexState": state_layout(LayerKind.C4A, encoding, index=True),
    }
