"""compress_insert: store each token's compressor state, then pool the groups that close into entries."""

from typing import Protocol

from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache, TokenBatch
from dsv4_rocm.kernels.selection import Implementation, always, needs_gpu_and_fp8_caches


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
        """Store state rows of all tokens, then close every group that ends in this batch.

        A token stores `[u_t | g_t + ape[t mod r]]` in fp32. The token at `t = r(e+1) - 1` closes entry e:
        `z = sum_j softmax_j(g_j) * u_j` per channel over the group's rows; for r = 4 the previous group takes part with
        the first half of the channels and the current one with the second half; rows before position 0 have weight 0.
        `entry = rope_{re}(norm_weight * z * (mean(z^2) + eps)^(-1/2))`, encoded by the layout of `entries`.

        Args:
            values: fp32 [tokens, c * w], u; c = 2 for r = 4 else 1, w = 512 (main) or 128 (index).
            gates: fp32 [tokens, c * w], g without the position bias.
            position_bias: fp32 [r, c * w], ape.
            norm_weight: [w].
            norm_eps: epsilon of the norm.
            frequencies: fp32 [32].
            batch: the tokens.
            state: the state cache, one slot per token; -1 writes nothing.
            entries: the cache of entries; its slot of a token is -1 unless the token closes a group.
        """
        ...


IMPLEMENTATIONS = (
    Implementation(
        "triton", "dsv4_rocm.kernels.compress_insert.triton_kernel:compress_insert", needs_gpu_and_fp8_caches
    ),
    Implementation("reference", "dsv4_rocm.kernels.compress_insert.reference:compress_insert", always),
)
