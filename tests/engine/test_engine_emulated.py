"""The engine on gfx942 and gfx950 machine code: the Triton ops of every step run on the emulator."""

import re
from pathlib import Path

import pytest

from dsv4_rocm.testing.engine import EngineRun, engine_arguments, run_engine
from dsv4_rocm.testing.situations import prompt

pytestmark = [pytest.mark.engine, pytest.mark.slow]

STEP = {"name": "short", "prompts": [prompt(40, 1)], "max_tokens": 4}


def run(checkpoint: Path, directory: Path, name: str, env: dict[str, str]) -> EngineRun:
    # The emulator maps the whole pool in every launch: 64 blocks are 6 MiB.
    sizes = {"max_model_len": 256, "max_num_batched_tokens": 64, "max_num_seqs": 2, "num_gpu_blocks_override": 64}
    sizes |= {"attention_config": {"indexer_kv_dtype": "fp8"}}  # left out, it would differ from the host's on gfx950
    engine = engine_arguments(checkpoint, dtype="bfloat16", kv_cache_dtype="fp8", **sizes)
    return run_engine(directory, name, {"engine": engine, "steps": [STEP]}, env)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_gives_the_tokens_of_the_reference(tmp_path: Path, quantized_checkpoint: Path, arch: str) -> None:
    emulated = run(quantized_checkpoint, tmp_path, arch, {"DSV4_ROCM_KERNELS": f"emulated:{arch}"})
    assert f"dsv4_rocm ops on {arch}" in emulated.log
    for op in ("indexer_select", "sparse_attention"):
        assert re.search(rf"{op} +hip", emulated.log)
    reference = run(quantized_checkpoint, tmp_path, "reference", {})
    assert emulated.requests["short"][0]["tokens"] == reference.requests["short"][0]["tokens"]
