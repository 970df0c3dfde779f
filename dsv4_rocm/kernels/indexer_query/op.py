"""indexer_query: rotate and quantize the index queries, and fold their scales into the head weights."""

from typing import NamedTuple, Protocol

from torch import Tensor

from dsv4_rocm.cache.layout import CacheLayout
from dsv4_rocm.kernels.selection import Implementation, always, needs_gpu_and_byte_index


class IndexQuery(NamedTuple):
    """Index queries as `indexer_select` takes them.

    Attributes:
        values: [tokens, index_heads, 128]; e4m3 bytes (uint8) for fp8 and mxfp4 index rows, else float in the query's
            dtype; rotated where the index rows are.
        weights: fp32 [tokens, index_heads], head weights with the query scales folded in; may be negative.
    """

    values: Tensor
    weights: Tensor


class IndexerQuery(Protocol):
    def __call__(
        self, query: Tensor, weights: Tensor, positions: Tensor, frequencies: Tensor, index: CacheLayout
    ) -> IndexQuery:
        """Prepare index queries for the encoding of the index rows.

        `q_{t,h} <- rope_t(q_{t,h})`, then its Hadamard transform where the rows are rotated. For fp8 and mxfp4 rows
        each head is quantized to e4m3 with one power-of-two scale, which moves into its weight:
        `w_{t,h} * 128^(-1/2) * heads^(-1/2) * scale_{t,h}`. That keeps every score, since a scale is positive and
        passes through the ReLU.

        Args:
            query: [tokens, index_heads, 128], output of the indexer's wq_b.
            weights: fp32 [tokens, index_heads], output of weights_proj.
            positions: int64 [tokens].
            frequencies: fp32 [32].
            index: layout of the index rows that the queries will meet.
        """
        ...


IMPLEMENTATIONS = (
    Implementation("triton", "dsv4_rocm.kernels.indexer_query.triton_kernel:indexer_query", needs_gpu_and_byte_index),
    Implementation("reference", "dsv4_rocm.kernels.indexer_query.reference:indexer_query", always),
)
