"""indexer_select: score the visible entries of each token and keep the best."""

from typing import Protocol

from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.selection import Implementation, always, needs_code_object, needs_gpu_and_byte_index


class IndexerSelect(Protocol):
    def __call__(
        self, query: IndexQuery, batch: TokenBatch, index: PagedCache, top_k: int, workspace: Tensor | None = None
    ) -> Tensor:
        """Select entries.

        `S_{t,e} = sum_h w_{t,h} * relu(q_{t,h} . k_e)` over the visible entries `e < floor((t + 1) / 4)`; the best
        `min(top_k, visible)` are kept, equal scores by lowest entry id. A score that is not finite is never kept, nor
        is an invisible entry.

        Args:
            query: from `indexer_query`.
            batch: the tokens.
            index: the index cache.
            top_k: entries to keep.
            workspace: int32 memory on the tokens' device that a kernel may overwrite; without it kernels allocate.

        Returns:
            int32 [tokens, top_k], entry ids of the token's request in no particular order, then -1.
        """
        ...


IMPLEMENTATIONS = (
    Implementation(
        "hip",
        "dsv4_rocm.kernels.indexer_select.hip_binding:indexer_select",
        needs_code_object("topk", needs_gpu_and_byte_index),
    ),
    Implementation("triton", "dsv4_rocm.kernels.indexer_select.triton_kernel:indexer_select", needs_gpu_and_byte_index),
    Implementation("reference", "dsv4_rocm.kernels.indexer_select.reference:indexer_select", always),
)
