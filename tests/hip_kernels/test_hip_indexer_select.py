"""indexer_select with the selection in HIP: what Triton's selects from the same scores, and when it is chosen."""

import pytest
import torch

from dsv4_rocm import arch
from dsv4_rocm.cache.layout import Encoding, index_layout
from dsv4_rocm.cache.rows import write_rows
from dsv4_rocm.cache.specs import SERVED
from dsv4_rocm.kernels import selection
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.indexer_select import hip_binding, hip_selection, triton_kernel, tuning
from dsv4_rocm.number_formats import e4m3_encode

CASES = {
    # encoding, top_k, ranges
    "flash-decode-b3": (Encoding.FP8, 64, [(1100, 1), (300, 1), (259, 1)]),
    "draft-verify-4": (Encoding.FP8, 64, [(700, 4), (301, 4)]),
    "prefill-chunk-mixed": (Encoding.MXFP4, 16, [(60, 9), (0, 6), (255, 1)]),
    "two-segments": (Encoding.FP8, 64, [(32_900, 1), (200, 1)]),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_selection_in_triton(gpu, sparse_cache, make_batch, name):
    encoding, top_k, ranges = CASES[name]
    layout, batch = index_layout(encoding), make_batch(*ranges)
    ends = [first + count for first, count in ranges]
    cache = sparse_cache(layout, [(0, end) for end in ends])
    torch.manual_seed(0)
    for request, end in enumerate(ends):
        write_rows(layout, cache.pages, cache.rows(request, torch.arange(end // 4)), torch.randn(end // 4, 128))
    values = e4m3_encode(torch.randn(batch.num_tokens, 64, 128) * 8)
    query = IndexQuery(values, torch.randn(batch.num_tokens, 64) * 0.1)
    entries = cache.at(batch).block_table.shape[1] * layout.rows_per_page
    space = torch.full((tuning.workspace_words(8, entries),), -1, dtype=torch.int32)
    found = hip_binding.indexer_select(query, batch, cache.at(batch), top_k, space)
    assert {"topk_segment"} <= {launched for launched, _ in gpu.launches}
    assert torch.equal(found, triton_kernel.indexer_select(query, batch, cache.at(batch), top_k, space))


@pytest.mark.parametrize("name", ["gfx942", "gfx950", "sm90"])
def test_chosen_where_there_is_a_code_object(name):
    choice = selection.choose("indexer_select", arch.get(name), SERVED)
    assert choice.chosen.name == ("triton" if name == "sm90" else "hip")
    assert choice.rejected == ({"hip": "needs an AMD GPU, not sm90"} if name == "sm90" else {})


@pytest.mark.parametrize("entries", [64, 8192, 8193, 20_000, 262_144])
def test_the_workspace_of_a_layer_serves_it(entries):
    """A request of one token, whatever the length."""
    assert tuning.workspace_words(1, entries) >= entries + hip_selection.candidate_words(entries, 1024)
