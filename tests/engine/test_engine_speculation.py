"""Serial drafts in the real engine: the answers are those of an engine without drafts, whatever was accepted."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from dsv4_rocm.testing.engine import EngineRun, engine_arguments, run_engine
from dsv4_rocm.testing.reference_attention import LayerCache
from dsv4_rocm.testing.reference_model import ReferenceModel
from dsv4_rocm.testing.situations import prompt
from dsv4_rocm.testing.tiny_checkpoint import write_checkpoint
from dsv4_rocm.testing.tiny_config import ORACLE

pytestmark = pytest.mark.engine

# Sublayers of these checkpoints speak at an eighth of their strength, so that an error moves logits an eighth as far
# as in the checkpoint of the other engine tests (1.3e-3 and more); measured equality is 2e-6.
BOUND = 2e-5
LOGITS_BOUND = 1e-4

# From 100 to 270 tokens: c4a entries all the way, 128 closes a c128a entry and fills two window pages, 256 a block.
LONG = {"name": "long", "prompts": [prompt(100, 1)], "max_tokens": 170}
STEPS = [
    {**LONG, "record_drafts": True},
    {"name": "cold", "prompts": [prompt(600, 6)], "max_tokens": 12},
    {"name": "warm", "prompts": [prompt(600, 6)], "max_tokens": 12},
    {"name": "preempted", "prompts": [prompt(120, 20)], "max_tokens": 16, "preempt_at": [3, 6, 8]},
]
NAMES = [step["name"] for step in STEPS]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("drafts"), ORACLE, drafts_agree=True)


def run(checkpoint: Path, directory: Path, drafts: int, steps: list[dict], **changed: object) -> EngineRun:
    if drafts:
        changed["speculative_config"] = {"method": "mtp", "num_speculative_tokens": drafts}
    else:
        steps = [{**step, "record_drafts": False} for step in steps]
    scenario = {"engine": engine_arguments(checkpoint, **changed), "steps": steps}
    return run_engine(directory, f"drafts-{drafts}", scenario)


@pytest.fixture(scope="module")
def plain(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineRun:
    return run(checkpoint, tmp_path_factory.mktemp("runs"), 0, STEPS)


@pytest.fixture(scope="module")
def one(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineRun:
    return run(checkpoint, tmp_path_factory.mktemp("runs"), 1, STEPS)


@pytest.fixture(scope="module")
def two(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineRun:
    """Two drafts, and prompts in chunks of 64."""
    return run(checkpoint, tmp_path_factory.mktemp("runs"), 2, STEPS, max_num_batched_tokens=64)


def assert_same(drafted: list[dict], plain: list[dict]) -> None:
    """Same tokens, and same log-probabilities of the five best of each."""
    for with_drafts, without in zip(drafted, plain, strict=True):
        assert with_drafts["tokens"] == without["tokens"]
        for got, expected in zip(with_drafts["logprobs"], without["logprobs"], strict=True):
            shared = got.keys() & expected.keys()
            assert len(shared) >= 4
            assert max(abs(got[token] - expected[token]) for token in shared) <= BOUND


@pytest.mark.parametrize("drafts", ["one", "two"])
@pytest.mark.parametrize("step", NAMES)
def test_drafts_change_nothing(request: pytest.FixtureRequest, plain: EngineRun, drafts: str, step: str) -> None:
    drafted: EngineRun = request.getfixturevalue(drafts)
    assert_same(drafted.requests[step], plain.requests[step])


@pytest.mark.parametrize(("drafts", "depth"), [("one", 1), ("two", 2)])
def test_metrics_count_accepted_and_rejected_drafts(request: pytest.FixtureRequest, drafts: str, depth: int) -> None:
    counts = request.getfixturevalue(drafts).drafts
    assert 0 < counts.accepted < counts.tokens
    assert len(counts.accepted_by_position) == depth
    assert sum(counts.accepted_by_position) == counts.accepted
    assert 0.3 <= counts.accepted / counts.tokens <= 0.9


def test_prefix_hits_lose_one_block_to_the_draft(plain: EngineRun, one: EngineRun, two: EngineRun) -> None:
    """The draft's window must be computed again before the hit's end, which costs an alignment unit of 256."""
    assert [run.requests["warm"][0]["cached"] for run in (plain, one, two)] == [512, 256, 256]


def test_preemptions_happened(one: EngineRun, two: EngineRun) -> None:
    assert one.preemptions > 0
    assert two.preemptions > 0


def test_draft_logits_equal_the_reference(checkpoint: Path, one: EngineRun) -> None:
    """Every position of the prompt, and then each step's, whatever was rejected in between."""
    (answer,) = one.requests["long"]
    ids = torch.tensor(answer["prompt"] + answer["tokens"])
    reference = ReferenceModel.from_checkpoint(checkpoint)
    streams = reference.streams(ids[:-1], reference.new_cache())
    expected = reference.head(reference.draft(streams, ids[1:]), "mtp.0")
    prompt_call, *later = one.draft_calls["long"]
    count = len(answer["prompt"])
    assert torch.equal(prompt_call["positions"], torch.arange(count))
    assert (prompt_call["logits"] - expected[:count]).abs().max() <= LOGITS_BOUND
    assert len(later) >= 80
    for call in later:
        (row,) = call["sampled"].tolist()
        position = call["positions"][row]
        if position == len(expected):  # drafted behind the last token of the answer
            continue
        assert call["next_ids"][row] == ids[position + 1]
        assert (call["logits"][row] - expected[position]).abs().max() <= LOGITS_BOUND


def test_second_draft_continues_the_first(checkpoint: Path, two: EngineRun) -> None:
    """Behind the chunks of 64, whose last positions vLLM's V1 runner drafts from a wrong token: only after 128 more."""
    (answer,) = two.requests["long"]
    ids = torch.tensor(answer["prompt"] + answer["tokens"])
    reference = ReferenceModel.from_checkpoint(checkpoint)
    streams = reference.streams(ids[:-1], reference.new_cache())
    checked = 0
    calls = two.draft_calls["long"]
    for first, second in pairwise(calls):
        (row,) = first["sampled"].tolist()
        position = int(first["positions"][row])
        if len(second["positions"]) != 1 or position < 64 + 128 or checked == 3:
            continue
        cache = LayerCache()
        drafted = reference.draft(streams[: position + 1], ids[1 : position + 2], cache=cache)
        expected = reference.head(drafted[-1:], "mtp.0")
        assert (first["logits"][row] - expected[0]).abs().max() <= LOGITS_BOUND
        following = reference.draft(drafted[-1:], second["next_ids"], position + 1, cache)
        assert second["next_ids"].item() == expected.argmax()
        assert (second["logits"] - reference.head(following, "mtp.0")).abs().max() <= LOGITS_BOUND
        checked += 1
    assert checked == 3


@pytest.mark.slow
def test_three_drafts_of_two_requests_change_nothing(checkpoint: Path, tmp_path: Path) -> None:
    steps = [{"name": "pair", "prompts": [prompt(60, 31), prompt(250, 32)], "max_tokens": 160}]
    plain, drafted = (run(checkpoint, tmp_path, drafts, steps) for drafts in (0, 3))
    assert_same(drafted.requests["pair"], plain.requests["pair"])
    assert 0 < drafted.drafts.accepted < drafted.drafts.tokens
