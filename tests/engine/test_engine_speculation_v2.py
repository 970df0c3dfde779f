"""vLLM's V2 model runner, its Triton kernels interpreted: DSpark, which it alone serves, and MTP."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from dsv4_rocm.testing.engine import V2_RUNNER, EngineRun, engine_arguments, run_engine
from dsv4_rocm.testing.reference_dspark import ReferenceDSpark
from dsv4_rocm.testing.reference_model import ReferenceModel
from dsv4_rocm.testing.situations import prompt
from dsv4_rocm.testing.tiny_checkpoint import write_checkpoint
from dsv4_rocm.testing.tiny_config import ORACLE, ORACLE_DSPARK, TinyConfig

pytestmark = [pytest.mark.engine, pytest.mark.slow]

BOUND = 1e-4
TIE = 1e-3
BLOCK = 5
STEP = {"name": "long", "prompts": [prompt(140, 1)], "max_tokens": 24}
Runs = Callable[[str], tuple[EngineRun, EngineRun]]
METHODS = {"mtp": (ORACLE, 2), "dspark": (ORACLE_DSPARK, BLOCK)}


def run(directory: Path, config: TinyConfig, speculative: dict | None) -> EngineRun:
    checkpoint = directory / "checkpoint"
    if not checkpoint.exists():
        write_checkpoint(checkpoint, config, drafts_agree=True)
    if speculative is None:
        return run_engine(directory, "plain", {"engine": engine_arguments(checkpoint), "steps": [STEP]})
    engine = engine_arguments(checkpoint, speculative_config=speculative)
    return run_engine(directory, "v2", {"engine": engine, "steps": [{**STEP, "record_drafts": True}]}, V2_RUNNER)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("v2")


@pytest.fixture(scope="module")
def runs(directory: Path) -> Runs:
    """By method: V1 without drafts, V2 with drafts."""

    @cache
    def of(method: str) -> tuple[EngineRun, EngineRun]:
        config, drafts = METHODS[method]
        (place := directory / method).mkdir()
        speculative = {"method": method, "num_speculative_tokens": drafts, "draft_sample_method": "greedy"}
        return run(place, config, None), run(place, config, speculative)

    return of


@pytest.mark.parametrize("method", METHODS)
def test_drafts_change_nothing_but_ties(runs: Runs, method: str) -> None:
    """More rows in a step mean other matrix kernels, whose last bits may decide between two equal tokens."""
    (plain,), (drafted,) = (engine.requests["long"] for engine in runs(method))
    for number, expected in enumerate(plain["tokens"]):
        if drafted["tokens"][number] != expected:
            best, second, *_ = sorted(plain["logprobs"][number].values(), reverse=True)
            assert best - second < TIE
            return
        got, right = drafted["logprobs"][number][str(expected)], plain["logprobs"][number][str(expected)]
        assert abs(got - right) <= BOUND


@pytest.mark.parametrize("method", METHODS)
def test_drafts_are_accepted_and_rejected(runs: Runs, method: str) -> None:
    counts = runs(method)[1].drafts
    assert 0 < counts.accepted < counts.tokens
    assert len(counts.accepted_by_position) == METHODS[method][1]


def test_blocks_equal_the_reference(directory: Path, runs: Runs) -> None:
    """Base logits of every proposal, the tokens that the Markov head makes of them, and the confidence in each."""
    engine = runs("dspark")[1]
    (answer,) = engine.requests["long"]
    ids = torch.tensor(answer["prompt"] + answer["tokens"])
    reference = ReferenceDSpark(ReferenceModel.from_checkpoint(directory / "dspark" / "checkpoint"))
    context = reference.context(ids)
    proposals = [call for call in engine.draft_calls["long"] if call["positions"][0] < len(ids)]
    assert len(proposals) >= 6
    for call in proposals:
        at = int(call["positions"][0])
        assert call["ids"].tolist() == [ids[at], *[ORACLE_DSPARK.dspark.noise_token_id] * (BLOCK - 1)]
        hidden = reference.hidden(context[:at], int(ids[at]), BLOCK)
        assert (call["logits"] - reference.logits(hidden)).abs().max() <= BOUND
        drafts = reference.draft(context[:at], int(ids[at]), BLOCK)
        before = torch.tensor([int(ids[at]), *drafts[:-1]])
        assert torch.equal(call["before"][:, 0].long(), before)
        assert (call["confidence"][:, 0] - reference.confidence(hidden, before)).abs().max() <= BOUND
