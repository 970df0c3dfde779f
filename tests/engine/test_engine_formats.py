"""The other formats on disk and in the cache, each in a short run of the real engine."""

from pathlib import Path

import pytest
import torch

from dsv4_rocm.testing.engine import EngineRun, engine_arguments, run_engine
from dsv4_rocm.testing.reference_model import ReferenceModel
from dsv4_rocm.testing.situations import prompt
from dsv4_rocm.testing.tiny_checkpoint import load_dequantized, write_checkpoint
from dsv4_rocm.testing.tiny_config import DEMO, read_config

pytestmark = pytest.mark.engine

STEP = {"name": "short", "prompts": [prompt(300, 1), prompt(40, 2)], "max_tokens": 8, "prompt_logprobs": True}


def run(checkpoint: Path, directory: Path, **changed: object) -> EngineRun:
    return run_engine(directory, "formats", {"engine": engine_arguments(checkpoint, **changed), "steps": [STEP]})


def distances(model: ReferenceModel, engine: EngineRun) -> torch.Tensor:
    """|log-probability difference| of every reported row to the reference: the mean over the row's tokens."""
    found = []
    for answer in engine.requests["short"]:
        expected = torch.log_softmax(model.logits(torch.tensor(answer["prompt"] + answer["tokens"])), -1)
        rows = list(enumerate(answer["prompt_logprobs"][1:]))
        rows += list(enumerate(answer["logprobs"], start=len(answer["prompt"]) - 1))
        for at, row in rows:
            tokens = torch.tensor([int(token) for token in row])
            found.append((torch.tensor(list(row.values())) - expected[at, tokens]).abs().mean())
    return torch.stack(found)


def test_base_checkpoint_equals_the_reference(tmp_path: Path) -> None:
    """FP8 experts with float32 block scales, as -Base checkpoints have them; fp32 rows, so nothing hides an error."""
    write_checkpoint(tmp_path / "base", DEMO, weights="fp8-experts")
    engine = run(tmp_path / "base", tmp_path)
    assert "fp32 key rows" in engine.log
    assert distances(ReferenceModel.from_checkpoint(tmp_path / "base"), engine).max() <= 1e-4


def test_mxfp4_index_rows_round_as_the_reference(tmp_path: Path, oracle_checkpoint: Path) -> None:
    """Closer to the reference with such index rows than to the one with fp8 index rows: selection differs."""
    flags = {"kv_cache_dtype": "fp8", "attention_config": {"indexer_kv_dtype": "mxfp4"}}
    engine = run(oracle_checkpoint, tmp_path, **flags)
    assert "mxfp4 index rows" in engine.log
    config, weights = read_config(oracle_checkpoint), load_dequantized(oracle_checkpoint)
    mxfp4, fp8 = (ReferenceModel(config, weights, cache, torch.float64) for cache in ("fp8-mxfp4", "fp8"))
    assert distances(mxfp4, engine).mean() <= 0.5 * distances(fp8, engine).mean()


def test_bfloat16_rows_are_close(tmp_path: Path, oracle_checkpoint: Path) -> None:
    """A key's rounding to bf16 is 1/16 of its rounding to e4m3, which moves log-probabilities by 2e-2."""
    engine = run(oracle_checkpoint, tmp_path, kv_cache_dtype="bfloat16")
    assert "bf16 key rows" in engine.log
    found = distances(ReferenceModel.from_checkpoint(oracle_checkpoint), engine)
    assert 1e-5 < found.mean() <= 5e-3
