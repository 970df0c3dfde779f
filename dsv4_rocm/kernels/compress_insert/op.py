"""compress_insert: store each token's compressor state, then pool the groups that close into entries."""

from typing import Protocol

from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.kernels.selection import Implementation, always, needs_gpu_and_byte_caches


class CompressInsert(Protocol):
    def __call__(
        self,
        values: Tensor,
        gates: Tensor,
        position_bias: Tensor,
        norm_weight: Tensor,
        norm_eps: float,
        frequencies: Tensor,
        batch: TokenBatch,
        state: PagedCache,
        entries: PagedCache,
    ) -> None:
        """Store the state rows that have a slot, then close every group that ends in this batch.

        A token's state row is `[u_t | g_t + ape[t mod r]]` in fp32. The token at `t = r(e+1) - 1` closes entry e:
        `z = sum_j softmax_j(g_j) * u_j` per channel over the group's rows; for r = 4 the previous group takes part with
        the first half of the channels and the current one with the second half; rows before position 0 have weight 0.
        `entry = rope_{re}(norm_weight * z * (mean(z^2) + eps)^(-1/2))`, encoded by the layout of `entries`.

        Rows of tokens of this batch come from the projections; only rows before a request's first token of the batch
        are read from state pages. So pages are needed for those rows alone that a later batch reads, and rows are
        stored before any is read: a request may share a page that another one fills in the same batch.

        Args:
            values: fp32 [tokens, c * w], u; c = 2 for r = 4 else 1, w = 512 (main) or 128 (index).
            gates: fp32 [tokens, c * w], g without the position bias.
            position_bias: fp32 [r, c * w], ape.
            norm_weight: [w].
            norm_eps: epsilon of the norm.
            frequencies: fp32 [32].
            batch: the tokens.
            state: the state cache, one slot per token; -1, which is also what a column without a page has, writes
                nothing.
            entries: the cache of entries; its slot of a token is -1 unless the token closes a group.
        """
        ...


IMPLEMENTATIONS = (
    Implementation(
        "triton", "dsv4_rocm.kernels.compress_insert.triton_kernel:compress_insert", needs_gpu_and_byte_caches
    ),
    Implementation("reference", "dsv4_rocm.kernels.compress_insert.reference:compress_insert", always),
)
