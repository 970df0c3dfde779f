"""The real engine with fp32 rows against transformers, in every situation that a scheduler can make."""

from pathlib import Path

import pytest
from torch import nn

from dsv4_rocm.testing import transformers_oracle
from dsv4_rocm.testing.engine import EngineRun, engine_arguments, run_engine
from dsv4_rocm.testing.situations import BOUNDARY_STEPS, LONG_STEP, SHORT_STEPS

pytestmark = pytest.mark.engine

BOUND = 1e-4  # the weakest of 32 deliberate errors moves a logit by 1.3e-3; a right engine is at 5e-6


@pytest.fixture(scope="module")
def oracle(oracle_checkpoint: Path) -> nn.Module:
    return transformers_oracle.from_checkpoint(oracle_checkpoint)


@pytest.fixture(scope="module")
def one_chunk(oracle_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineRun:
    steps = [LONG_STEP, *SHORT_STEPS, *BOUNDARY_STEPS]
    scenario = {"engine": engine_arguments(oracle_checkpoint), "steps": steps, "no_amx": True}
    return run_engine(tmp_path_factory.mktemp("fp32"), "one-chunk", scenario)


@pytest.fixture(scope="module")
def chunks_of_64(oracle_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineRun:
    engine = engine_arguments(oracle_checkpoint, max_num_batched_tokens=64)
    steps = [LONG_STEP, *SHORT_STEPS, *BOUNDARY_STEPS]
    return run_engine(tmp_path_factory.mktemp("fp32"), "chunks", {"engine": engine, "steps": steps})


@pytest.fixture(scope="module")
def two_ranks(oracle_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> EngineRun:
    engine = engine_arguments(oracle_checkpoint, tensor_parallel_size=2)
    steps = [{**LONG_STEP, "max_tokens": 16}, SHORT_STEPS[0]]
    env = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    return run_engine(tmp_path_factory.mktemp("fp32"), "two-ranks", {"engine": engine, "steps": steps}, env)


@pytest.mark.slow
def test_two_stages_equal_transformers(
    oracle: nn.Module, oracle_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Pipeline parallel; the dummy run before it, without metadata, happens only outside eager mode."""
    engine = engine_arguments(oracle_checkpoint, pipeline_parallel_size=2, enforce_eager=False)
    env = {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "VLLM_USE_BREAKABLE_CUDAGRAPH": "0"}
    scenario = {"engine": engine, "steps": [{**LONG_STEP, "max_tokens": 16}]}
    run = run_engine(tmp_path_factory.mktemp("fp32"), "two-stages", scenario, env)
    assert max(transformers_oracle.worst_difference(oracle, answer) for answer in run.requests["long"]) <= BOUND


STEP_NAMES = ["long", *(step["name"] for step in [*SHORT_STEPS, *BOUNDARY_STEPS])]


@pytest.mark.parametrize("engine", ["one_chunk", "chunks_of_64"])
@pytest.mark.parametrize("step", STEP_NAMES)
def test_equals_transformers(request: pytest.FixtureRequest, oracle: nn.Module, engine: str, step: str) -> None:
    run: EngineRun = request.getfixturevalue(engine)
    assert max(transformers_oracle.worst_difference(oracle, answer) for answer in run.requests[step]) <= BOUND


@pytest.mark.parametrize("step", ["long", "mixed"])
def test_two_ranks_equal_transformers(oracle: nn.Module, two_ranks: EngineRun, step: str) -> None:
    assert max(transformers_oracle.worst_difference(oracle, answer) for answer in two_ranks.requests[step]) <= BOUND


def test_long_step_checks_every_prompt_position(one_chunk: EngineRun) -> None:
    (answer,) = one_chunk.requests["long"]
    assert len(answer["prompt_logprobs"]) == 700
    assert len(answer["logprobs"]) == 40


@pytest.mark.parametrize("engine", ["one_chunk", "chunks_of_64"])
def test_prefix_hits_happened(request: pytest.FixtureRequest, engine: str) -> None:
    run: EngineRun = request.getfixturevalue(engine)
    assert [run.requests[step][0]["cached"] for step in ("cold", "warm", "warm-other-tail")] == [0, 512, 512]
    assert run.requests["warm"][0]["tokens"] == run.requests["cold"][0]["tokens"]


@pytest.mark.parametrize("engine", ["one_chunk", "chunks_of_64"])
def test_hits_end_at_whole_blocks_and_leave_the_last_token(request: pytest.FixtureRequest, engine: str) -> None:
    """256 -> 0, since the last token is computed again; 257 -> 256; 513 -> 512."""
    run: EngineRun = request.getfixturevalue(engine)
    assert [answer["cached"] for answer in run.requests["boundaries-warm"]] == [0, 256, 512]


def test_preemptions_happened(one_chunk: EngineRun, chunks_of_64: EngineRun) -> None:
    assert one_chunk.preemptions > 0
    assert chunks_of_64.preemptions > 0


def test_our_platform_served_without_amx(one_chunk: EngineRun) -> None:
    assert one_chunk.platform == "Dsv4HostPlatform"
    assert "sparse_attention   reference" in one_chunk.log
