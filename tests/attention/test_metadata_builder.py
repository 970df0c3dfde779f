"""The metadata builder: padded batches, dummy batches, stable buffers."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.attention.backend import AttentionCGSupport

from dsv4_rocm import arch, envs
from dsv4_rocm.attention.metadata_builder import MetadataBuilder
from dsv4_rocm.cache.layout import Encoding, entries_layout, swa_layout
from dsv4_rocm.cache.specs import to_vllm
from dsv4_rocm.model_spec import LayerKind

CONFIG = SimpleNamespace(
    scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
    speculative_config=None,
    parallel_config=SimpleNamespace(decode_context_parallel_size=1),
)


def builder(layout) -> MetadataBuilder:
    return MetadataBuilder(to_vllm(layout), ["layer"], CONFIG, torch.device("cpu"))


def common(query_start: list[int], seq_lens: list[int], slots: list[int]) -> SimpleNamespace:
    return SimpleNamespace(
        num_reqs=len(seq_lens),
        max_query_len=max(end - start for start, end in pairwise(query_start)),
        query_start_loc=torch.tensor(query_start, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        num_actual_tokens=len(slots),
        slot_mapping=torch.tensor(slots),
        block_table_tensor=torch.zeros(len(seq_lens), 4, dtype=torch.int32),
        causal=True,
    )


def test_two_prefills_start_at_their_own_zero() -> None:
    step = builder(swa_layout(Encoding.FP8)).build(0, common([0, 3, 5], [3, 2], [64, 65, 66, 128, 129]))
    assert step.batch.request.tolist() == [0, 0, 0, 1, 1]
    assert step.batch.positions.tolist() == [0, 1, 2, 0, 1]
    assert step.slots.tolist() == [64, 65, 66, 128, 129]
    assert step.causal


def test_a_draft_that_sees_its_whole_block_is_not_causal() -> None:
    batch = common([0, 2], [9], [64, 65])
    batch.causal = False
    assert not builder(swa_layout(Encoding.FP8)).build(0, batch).causal


def test_entries_get_slots_of_closing_tokens() -> None:
    slots = [5 * 256 + position for position in range(126, 130)]
    step = builder(entries_layout(LayerKind.C128A, Encoding.FP8)).build(0, common([0, 4], [130], slots))
    assert step.slots.tolist() == [-1, 5 * 2 + 0, -1, -1]


@pytest.mark.parametrize("layout", [swa_layout(Encoding.FP8), entries_layout(LayerKind.C4A, Encoding.FP8)])
def test_a_dummy_batch_writes_nothing(layout) -> None:
    step = builder(layout).build(0, common([0, 1, 2], [0, 0], [-1, -1]))
    assert step.slots.tolist() == [-1, -1]
    assert (step.batch.positions == -1).all()


@pytest.mark.parametrize(
    ("query_start", "tokens", "expected"),
    [
        ([0, 1, 2, 3], 3, 1),
        ([0, 4, 8], 8, 4),
        ([0, 8], 8, 8),
        ([0, 4, 4], 8, 4),  # a graph of two requests replayed with one: tokens behind the last request are padding
        ([0, 9], 9, None),
        ([0, 4, 6], 6, None),
        ([0, 1, 5], 5, None),
    ],
    ids=["decode", "draft-verify-4", "draft-verify-8", "padded-graph", "prefill", "shorter-draft", "mixed"],
)
def test_tokens_per_request(query_start: list[int], tokens: int, expected: int | None) -> None:
    step = builder(swa_layout(Encoding.FP8)).build(0, common(query_start, [64] * (len(query_start) - 1), [-1] * tokens))
    assert step.batch.tokens_per_request == expected
    if expected is not None:
        requests = step.batch.request
        live = requests < len(query_start) - 1
        assert torch.equal(requests[live], (torch.arange(tokens) // expected)[live])


@pytest.mark.parametrize(
    ("name", "cache_dtype", "forced", "expected"),
    [
        ("gfx942", "auto", None, AttentionCGSupport.UNIFORM_BATCH),
        ("sm90", "fp8", None, AttentionCGSupport.UNIFORM_BATCH),
        ("gfx942", "bfloat16", None, AttentionCGSupport.NEVER),
        ("gfx942", "auto", "reference", AttentionCGSupport.NEVER),
        ("host", "auto", None, AttentionCGSupport.NEVER),
    ],
    ids=["kernels", "kernels-cuda", "rows-without-kernels", "forced-reference", "host"],
)
def test_graphs_need_kernels(monkeypatch, name: str, cache_dtype: str, forced: str | None, expected) -> None:
    config = SimpleNamespace(
        attention_config=SimpleNamespace(indexer_kv_dtype=None),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype),
        model_config=SimpleNamespace(dtype=torch.bfloat16),
    )
    if forced:
        monkeypatch.setenv(envs.impl_variable("indexer_select"), forced)
    with arch.override(name):
        assert MetadataBuilder.get_cudagraph_support(config, None) is expected


def test_buffers_keep_their_addresses() -> None:
    made = builder(swa_layout(Encoding.FP8))
    first = made.build(0, common([0, 3], [3], [64, 65, 66]))
    addresses = [t.data_ptr() for t in (first.batch.positions, first.batch.request, first.slots)]
    second = made.build(0, common([0, 1, 2], [8, 9], [71, 200]))
    assert [t.data_ptr() for t in (second.batch.positions, second.batch.request, second.slots)] == addresses
    assert second.batch.positions.tolist() == [7, 8]
