"""The planner's arithmetic: equal to vLLM's own planner, and to the figures that are published.

Run as a program, this file answers what vLLM's planner says (JSON in, JSON out): vLLM stays out of the test process.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4_rocm.cache.gpu_memory import GIB, GPUS, Parallelism, stored_bytes, weights_per_gpu, workspaces
from dsv4_rocm.cache.layout import CacheKind, Encoding
from dsv4_rocm.cache.planner import LENGTHS, Request, make_plan, what_if_mxfp4_index
from dsv4_rocm.cache.pool import InFlight, StatePages, make_pool
from dsv4_rocm.cache.specs import CacheEncodings, model_caches
from dsv4_rocm.model_spec import FLASH, PRO, LayerKind, LayerSpec

FP8 = CacheEncodings(Encoding.FP8, Encoding.FP8)
MEMORY = {"flash": 71 * GIB, "pro": 118 * GIB}  # what one MI325X and each of eight leave for KV
MILLION = 1 << 20


def with_ratios(ratios):
    return replace(FLASH, layers=tuple(LayerSpec(i, LayerKind(ratio), False) for i, ratio in enumerate(ratios)))


SPECS = {
    "flash": FLASH,
    "pro": PRO,
    # Where the packing takes another branch than for the published models.
    "demo": with_ratios([0, 0, 4, 128, 4, 128]),
    "no-c4a": with_ratios([0, 128, 0, 128, 128]),
    "no-c128a": with_ratios([0, 4, 4, 4]),
    "swa-only": with_ratios([0, 0, 0]),
    "one-of-each": with_ratios([0, 4, 128]),
    "mostly-swa": with_ratios([0] * 9 + [4, 128, 4]),
    "mostly-c128a": with_ratios([128] * 11 + [4, 4]),
}


def caches_of(name, rows):
    caches = model_caches(SPECS[name], FP8 if rows == "mxfp4" else CacheEncodings(Encoding(rows), Encoding(rows)))
    if rows == "mxfp4":
        index = what_if_mxfp4_index()
        caches = {key: index if layout.kind is CacheKind.INDEX else layout for key, layout in caches.items()}
    return caches


# name, rows, tokens per batch, async scheduling, length
CASES = [(name, "fp8", tokens, False, MILLION) for name in ("flash", "pro") for tokens in (256, 2_048, 8_192, 16_384)]
CASES += [(name, "fp8", 8_192, True, length) for name in ("flash", "pro") for length in (*LENGTHS, 4_096, 100_001)]
CASES += [(name, rows, 8_192, False, 131_072) for name in ("flash", "pro") for rows in ("bf16", "fp32", "mxfp4")]
CASES += [(name, rows, 512, False, 8_192) for name in SPECS for rows in ("fp8", "bf16")]


def ask_vllm(cases):
    """In a process of its own: vLLM's answer to each case, from our specs."""
    import tempfile

    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.math_utils import cdiv
    from vllm.v1.core import kv_cache_utils as planner

    from dsv4_rocm.cache.specs import to_vllm
    from dsv4_rocm.testing.tiny_config import DEMO, config_json
    from dsv4_rocm.testing.tiny_tokenizer import write_tokenizer

    with tempfile.TemporaryDirectory() as directory:
        config_text = json.dumps(config_json(replace(DEMO, max_position_embeddings=MILLION), "bfloat16"))
        (Path(directory) / "config.json").write_text(config_text)
        write_tokenizer(Path(directory), 2048)
        arguments = {"trust_remote_code": True, "kv_cache_dtype": "fp8", "max_model_len": MILLION, "max_num_seqs": 4}
        arguments |= {"tokenizer_mode": "deepseek_v4", "enforce_eager": True, "load_format": "dummy"}
        config = EngineArgs(model=directory, **arguments).create_engine_config()
    config.cache_config.kv_cache_layout = "BLHNC"
    answers = []
    for name, rows, tokens, is_async, length in cases:
        config.scheduler_config.max_num_batched_tokens = tokens
        config.scheduler_config.async_scheduling = is_async
        config.model_config.max_model_len = length
        specs = {key: to_vllm(layout) for key, layout in caches_of(name, rows).items()}
        (planned,) = planner.get_kv_cache_configs(config, [specs], [MEMORY.get(name, GIB)])
        groups = planned.kv_cache_groups
        block = planner._pool_bytes_per_block(config, groups)
        answer = {
            "tokens_in_flight": config.max_in_flight_tokens,
            "groups": [sorted(group.layer_names) for group in groups],
            "block_sizes": [group.kv_cache_spec.block_size for group in groups],
            "block_bytes": block,
            "blocks": planned.num_blocks,
            "columns": [
                cdiv(group.kv_cache_spec.max_memory_usage_bytes(config), group.kv_cache_spec.page_size_bytes)
                for group in groups
            ],
            "concurrency": planner.get_max_concurrency_for_kv_cache_config(config, planned),
        }
        config.model_config.max_model_len = MILLION
        usable = MEMORY.get(name, GIB) - block
        answer["largest"] = planner._estimate_max_model_len_from_groups(config, groups, usable)
        answers.append(answer)
    return answers


@pytest.fixture(scope="module")
def answers():
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DSV4_ROCM_", "VLLM_"))}
    clean |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(
        [sys.executable, __file__], input=json.dumps(CASES), env=clean, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_equal_to_vllm(case, answers):
    name, rows, tokens, is_async, length = case
    pool = make_pool(caches_of(name, rows))
    flight = InFlight(tokens, 2 if is_async else 1)
    blocks = MEMORY.get(name, GIB) // pool.block_bytes
    assert answers[case] == {
        "tokens_in_flight": flight.tokens,
        "groups": [sorted(group.caches) for group in pool.groups],
        "block_sizes": [group.block_tokens for group in pool.groups],
        "block_bytes": pool.block_bytes,
        "blocks": blocks,
        "columns": list(pool.columns(length, flight, StatePages.DENSE)),
        "concurrency": blocks / pool.request_blocks(length, flight, StatePages.DENSE),
        "largest": pool.largest_length(blocks, MILLION, flight, StatePages.DENSE),
    }


if __name__ == "__main__":
    stdout, sys.stdout = sys.stdout, sys.stderr
    json.dump(ask_vllm([tuple(case) for case in json.load(sys.stdin)]), stdout)
