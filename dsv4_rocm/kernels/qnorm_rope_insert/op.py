"""qnorm_rope_insert: norm and rotate the query heads, rotate the window key and write it to the SWA cache."""

from typing import Protocol

from torch import Tensor

from dsv4_rocm.cache.addressing import PagedCache
from dsv4_rocm.kernels.selection import Implementation, always, needs_gpu_and_fp8_rows


class QnormRopeInsert(Protocol):
    def __call__(
        self, query: Tensor, key: Tensor, positions: Tensor, frequencies: Tensor, norm_eps: float, window: PagedCache
    ) -> Tensor:
        """Prepare queries and store window keys.

        `q_h <- rope_t(q_h * (mean(q_h^2) + eps)^(-1/2))` per head over all 512 channels, without a weight;
        `k_t <- rope_t(k)`, encoded by the cache's layout and written at `window.slots`.

        Args:
            query: [tokens, heads, 512], output of wq_b.
            key: [tokens, 512], normed output of wkv.
            positions: int64 [tokens].
            frequencies: fp32 [32], angle per position of each channel pair.
            norm_eps: epsilon of the query norm.
            window: the SWA cache; a slot of -1 writes nothing.

        Returns:
            Queries [tokens, heads, 512] in the dtype of `query`.
        """
        ...


IMPLEMENTATIONS = (
    Implementation(
        "triton", "dsv4_rocm.kernels.qnorm_rope_insert.triton_kernel:qnorm_rope_insert", needs_gpu_and_fp8_rows
    ),
    Implementation("reference", "dsv4_rocm.kernels.qnorm_rope_insert.reference:qnorm_rope_insert", always),
)
