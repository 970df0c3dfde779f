"""Positions, requests and slots: real, padded and dummy ones."""

import torch

from dsv4_rocm.cache.addressing import entry_slots, paged_slots, request_of_token, row_slots, token_positions


def test_invalid_requests_and_entries_have_no_slot() -> None:
    table = torch.tensor([[5, 6], [7, 8]], dtype=torch.int32)
    request = torch.tensor([-1, 2, 0, 0, 1, 0])
    entry = torch.tensor([0, 0, 10**9, -1, 65, 128])
    slots = row_slots(table, request, entry, 64)
    assert slots.tolist() == [-1, -1, -1, -1, 8 * 64 + 1, -1]
    assert (slots >= 0).sum() == 1


def test_positions_count_back_from_the_end_of_each_context() -> None:
    query_start, seq_lens = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([5, 3], dtype=torch.int32)
    request = request_of_token(query_start, 5)
    assert request.tolist() == [0, 0, 1, 1, 1]
    assert token_positions(query_start, seq_lens, request).tolist() == [3, 4, 0, 1, 2]


def test_an_empty_request_sees_nothing() -> None:
    """Draft verification of [5, 0] with two positions each: context lengths [[4, 5], [0, 0]], never negative."""
    query_start, seq_lens = torch.tensor([0, 2, 4], dtype=torch.int32), torch.tensor([5, 0], dtype=torch.int32)
    positions = token_positions(query_start, seq_lens, request_of_token(query_start, 4))
    assert (positions + 1).tolist() == [4, 5, 0, 0]


def test_padded_tokens_belong_to_no_request() -> None:
    query_start = torch.tensor([0, 1, 3], dtype=torch.int32)
    request = request_of_token(query_start, 5)
    assert request.tolist() == [0, 1, 1, 2, 2]
    seq_lens = torch.tensor([9, 2], dtype=torch.int32)
    assert token_positions(query_start, seq_lens, request).tolist() == [8, 0, 1, -1, -1]


def test_only_the_closing_token_has_an_entry_slot() -> None:
    positions = torch.arange(250, 262)
    token_slots = torch.where(positions < 256, 3 * 256 + positions, 9 * 256 + positions - 256)
    slots = entry_slots(token_slots, positions, 4, 256)
    closing = {251: 3 * 64 + 62, 255: 3 * 64 + 63, 259: 9 * 64}
    assert slots.tolist() == [closing.get(position, -1) for position in positions.tolist()]


def test_padding_has_no_entry_slot() -> None:
    assert entry_slots(torch.tensor([-1, -1]), torch.tensor([3, -1]), 4, 256).tolist() == [-1, -1]


def test_a_column_without_a_page_has_no_slots() -> None:
    assert paged_slots(torch.tensor([-1, 0, 3, 4, 9]), 4).tolist() == [-1, -1, -1, 4, 9]
