"""sparse_attention: one softmax over window keys, compressed entries and a sink, from two paged caches."""

from typing import Protocol

from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.kernels.selection import Implementation, always, needs_code_object, needs_gpu_and_fp8_rows


class SparseAttention(Protocol):
    def __call__(
        self,
        query: Tensor,
        sink: Tensor,
        scale: float,
        batch: TokenBatch,
        window: PagedCache,
        entries: PagedCache | None,
        selected: Tensor | None,
        frequencies: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Keys of token t: the window rows `max(0, t - 127) .. t`, and of the entries `e < floor((t + 1) / r)` all, or
        those in `selected`. A key is its own value. With `l_k = q . k * scale`:
        `o = sum_k exp(l_k) k / (sum_k exp(l_k) + exp(sink))`. A token without any key gets zero. With `frequencies` the
        last 64 channels of each head are turned back by `-position * theta`, as `inv_rope_quant` would, before the one
        rounding to the output's dtype.

        Args:
            query: [tokens, heads, 512].
            sink: fp32 [heads], a logit whose value is zero; -inf adds nothing.
            scale: 512^(-1/2).
            batch: the tokens.
            window: the SWA cache; its layout's window is the number of positions seen, the token's own included.
            entries: the cache of entries, None for SWA layers.
            selected: int32 [tokens, k], entry ids (a set per token; -1 anywhere is skipped, ids that are not visible
                are ignored), None to attend to all visible entries.
            frequencies: fp32 [32], the angles per position to turn the result back by; None leaves it as it is.

        Returns:
            [tokens, heads, 512] in the dtype of `query`, contiguous: the heads of an output group are neighbours, so
            [tokens, groups, heads / groups * 512] is a view of it.
        """
        ...


IMPLEMENTATIONS = (
    Implementation(
        "hip",
        "dsv4_rocm.kernels.sparse_attention.hip_binding:sparse_attention",
        needs_code_object("sparse_attention", needs_gpu_and_fp8_rows),
    ),
    Implementation(
        "triton", "dsv4_rocm.kernels.sparse_attention.triton_kernel:sparse_attention", needs_gpu_and_fp8_rows
    ),
    Implementation("reference", "dsv4_rocm.kernels.sparse_attention.reference:sparse_attention", always),
)
