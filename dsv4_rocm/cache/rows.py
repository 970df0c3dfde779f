"""Encode, decode, write and read cache rows as their layout says: the definition every kernel is tested against."""

import torch
from torch import Tensor

from dsv4_rocm.cache.layout import FP8_GROUP, NOPE_DIM, CacheKind, CacheLayout, Encoding, TileOrder
from dsv4_rocm.model_spec import ROPE_DIM
from dsv4_rocm.number_formats import (
    dequantize_fp8,
    dequantize_mxfp4,
    e8m0_decode,
    e8m0_encode,
    hadamard,
    quantize_fp8,
    quantize_mxfp4,
)


def encode_rows(layout: CacheLayout, values: Tensor) -> tuple[Tensor, Tensor]:
    """Values to bytes.

    Args:
        layout: the cache's layout.
        values: [n, channels], any float dtype.

    Returns:
        data uint8 [n, data_bytes] and scales uint8 [n, scale_bytes].
    """
    n = values.shape[0]
    if layout.rotated:
        values = hadamard(values.float())
    if layout.encoding is Encoding.MXFP4:
        return quantize_mxfp4(values)
    if layout.encoding is not Encoding.FP8:
        dtype = torch.bfloat16 if layout.encoding is Encoding.BF16 else torch.float32
        return _bytes(values.to(dtype)), values.new_zeros(n, 0, dtype=torch.uint8)
    if layout.kind is CacheKind.INDEX:
        data, scale = quantize_fp8(values, layout.channels)
        return data, _bytes(scale)
    # Keys pass through bf16 on the way: the quantizer sees what a bf16 GEMM would have handed over.
    rounded = values.to(torch.bfloat16)
    nope, scale = quantize_fp8(rounded[:, :NOPE_DIM].float(), FP8_GROUP)
    scales = torch.zeros(n, layout.scale_bytes, dtype=torch.uint8, device=values.device)
    scales[:, : NOPE_DIM // FP8_GROUP] = e8m0_encode(scale)
    return torch.cat([nope, _bytes(rounded[:, NOPE_DIM:])], 1), scales


def decode_rows(layout: CacheLayout, data: Tensor, scales: Tensor) -> Tensor:
    """Bytes to values as they are stored, that is rotated where the layout says so.

    uint8 [n, data_bytes], uint8 [n, scale_bytes] -> fp32 [n, channels].
    """
    if layout.encoding is Encoding.MXFP4:
        return dequantize_mxfp4(data, scales)
    if layout.encoding is Encoding.FP32:
        return data.contiguous().view(torch.float32)
    if layout.encoding is Encoding.BF16:
        return data.contiguous().view(torch.bfloat16).float()
    if layout.kind is CacheKind.INDEX:
        return dequantize_fp8(data, scales.contiguous().view(torch.float32))
    nope = dequantize_fp8(data[:, :NOPE_DIM], e8m0_decode(scales[:, : NOPE_DIM // FP8_GROUP]))
    rope = data[:, NOPE_DIM : NOPE_DIM + 2 * ROPE_DIM].contiguous().view(torch.bfloat16).float()
    return torch.cat([nope, rope], 1)


def write_rows(layout: CacheLayout, pages: Tensor, slots: Tensor, values: Tensor) -> None:
    """Write rows at physical slots; a slot of -1 writes nothing.

    Args:
        layout: the cache's layout.
        pages: uint8 [num_blocks, page_bytes], rows of any stride (a view into a packed pool).
        slots: int64 [n], block * rows_per_page + row, or -1.
        values: [n, channels].
    """
    live = slots >= 0
    if not live.any():
        return
    data, scales = encode_rows(layout, values[live])
    block, row = _split(layout, slots[live])
    _rows(pages, 0, layout.rows_per_page, layout.data_bytes)[block, row] = data
    _rows(pages, layout.scale_offset, layout.rows_per_page, layout.scale_bytes)[block, row] = scales


def read_rows(layout: CacheLayout, pages: Tensor, slots: Tensor) -> Tensor:
    """Read rows at physical slots (int64, any shape, all >= 0) as fp32 [..., channels]; only those rows are touched."""
    block, row = _split(layout, slots.flatten())
    data = _rows(pages, 0, layout.rows_per_page, layout.data_bytes)[block, row]
    scales = _rows(pages, layout.scale_offset, layout.rows_per_page, layout.scale_bytes)[block, row]
    return decode_rows(layout, data, scales).view(*slots.shape, layout.channels)


def zero_pages(layout: CacheLayout, pages: Tensor, blocks: Tensor) -> None:
    """Zero the rows of some blocks, and nothing of the padding or of a neighbour."""
    pages[blocks, : layout.page_bytes] = 0


def _bytes(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8)


def _split(layout: CacheLayout, slots: Tensor) -> tuple[Tensor, Tensor]:
    if layout.order is not TileOrder.FLAT:
        raise ValueError(
            f"{layout.kind.value} rows in {layout.order.value} order cannot be read or written as flat rows"
        )
    return slots // layout.rows_per_page, slots % layout.rows_per_page


def _rows(pages: Tensor, offset: int, rows: int, width: int) -> Tensor:
    """View of one part of every page: [num_blocks, rows, width]; the stride between blocks is the pool's."""
    return pages.as_strided((pages.shape[0], rows, width), (pages.stride(0), width, 1), pages.storage_offset() + offset)
