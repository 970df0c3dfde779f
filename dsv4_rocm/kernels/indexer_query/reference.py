"""Reference of indexer_query in plain torch."""

from torch import Tensor

from dsv4_rocm.cache.layout import CacheLayout, Encoding
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.rotary import rotate
from dsv4_rocm.number_formats import hadamard, quantize_fp8


def indexer_query(
    query: Tensor, weights: Tensor, positions: Tensor, frequencies: Tensor, index: CacheLayout
) -> IndexQuery:
    """See `op.IndexerQuery`."""
    heads, width = query.shape[1:]
    rotated = rotate(query.float(), positions, frequencies)
    if index.rotated:
        rotated = hadamard(rotated)
    scaled = weights.float() * (width**-0.5 * heads**-0.5)
    if index.encoding not in (Encoding.FP8, Encoding.MXFP4):
        return IndexQuery(rotated.to(query.dtype), scaled)
    values, scale = quantize_fp8(rotated, width)
    return IndexQuery(values, scaled * scale[..., 0])
