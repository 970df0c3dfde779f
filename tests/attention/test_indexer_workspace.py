"""The indexer's workspace: one for all layers, as large as a step can need, and never over the cap."""

from types import SimpleNamespace

import pytest

from dsv4_rocm.attention import indexer
from dsv4_rocm.cache.gpu_memory import INDEXER_LOGITS_CAP
from dsv4_rocm.cache.layout import Encoding, index_layout
from dsv4_rocm.kernels.indexer_select import tuning

LAYOUT = index_layout(Encoding.MXFP4)


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch):
    def configure(length: int, batched_tokens: int) -> None:
        config = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=length),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=batched_tokens),
        )
        monkeypatch.setattr(indexer, "get_current_vllm_config", lambda: config)

    return configure


def test_layers_share_what_a_step_can_need(configured) -> None:
    """1,000 tokens are four pages; one more is for what drafts reach."""
    configured(1000, 100)
    workspace = indexer._indexer_workspace(LAYOUT)
    assert workspace.numel() == 100 * 5 * 64
    assert indexer._indexer_workspace(LAYOUT) is workspace


def test_one_request_at_a_million_tokens_has_room_for_candidates(configured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight tokens of a request stay together with --max-num-batched-tokens 8."""
    asked = []
    monkeypatch.setattr(indexer, "_workspace", lambda words, device: asked.append(words))
    configured(1_048_576, 8)
    indexer._indexer_workspace(LAYOUT)
    entries = 4097 * 64
    assert asked[0] >= 8 * (entries + tuning.candidate_words(entries, 1024))


def test_a_million_tokens_stay_below_the_cap(configured, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(indexer, "_workspace", lambda words, device: asked.append(words))
    configured(1_048_576, 8192)
    indexer._indexer_workspace(LAYOUT)
    assert asked == [INDEXER_LOGITS_CAP // 4]
    line = 4097 * 64 + tuning.candidate_words(4097 * 64, 1024)
    assert INDEXER_LOGITS_CAP // (4 * line) >= 400  # tokens a round
