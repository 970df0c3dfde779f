"""The planner's arithmetic: equal to vLLM's own planner, and to the figures that are published.

Run as a program, this file answers what vLLM's planner says (JSON in, JSON out): vLLM stays out of the test process.
"""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsv4_rocm.cache.gpu_memory import GIB, Parallelism, stored_bytes, weights_per_gpu
from dsv4_rocm.cache.layout import Encoding
from dsv4_rocm.cache.plan_flags import read_flags
from dsv4_rocm.cache.plan_report import one_line, render
from dsv4_rocm.cache.planner import (
    LENGTHS,
    as_json,
    changes,
    make_plan,
    sequence_bytes,
    v32_style_bytes,
)
from dsv4_rocm.cache.pool import StatePages, make_pool
from dsv4_rocm.cache.retention import InFlight
from dsv4_rocm.cache.specs import CacheEncodings, model_caches
from dsv4_rocm.cli import app
from dsv4_rocm.model_spec import FLASH, PRO, LayerKind, LayerSpec
from dsv4_rocm.testing import vllm_releases

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
_random = random.Random(0)
RANDOM = {f"random-{n}": with_ratios(_random.choices([0, 4, 128], k=_random.randint(2, 30))) for n in range(10)}
SPECS |= RANDOM


def caches_of(name, rows):
    encodings = (
        CacheEncodings(Encoding.FP8, Encoding.MXFP4) if rows == "mxfp4" else CacheEncodings(*[Encoding(rows)] * 2)
    )
    return model_caches(SPECS[name], encodings)


FLIGHTS = [(False, MILLION), (True, MILLION), (True, 8_192), (True, 300)]
# name, rows, tokens per batch, async scheduling, length; all with vLLM's own sliding windows, some with our specs
CASES = [(name, "fp8", tokens, False, MILLION) for name in ("flash", "pro") for tokens in (256, 2_048, 8_192, 16_384)]
CASES += [(name, "fp8", 8_192, True, length) for name in ("flash", "pro") for length in (*LENGTHS, 4_096, 100_001)]
CASES += [(name, rows, 8_192, False, 131_072) for name in ("flash", "pro") for rows in ("bf16", "fp32", "mxfp4")]
CASES += [(name, rows, 512, False, 8_192) for name in SPECS if name not in RANDOM for rows in ("fp8", "bf16")]
CASES += [(name, "fp8", 1_000, True, 50_000) for name in RANDOM]
CASES = [(*case, "dense", 0) for case in CASES] + [(*case, "gapped", 0) for case in CASES if case[2] != 1_000]
CASES += [(name, "fp8", 8_192, *case, "gapped", 3) for name in ("flash", "pro") for case in FLIGHTS]


def flight_of(tokens, is_async, drafts):
    batches = 2 if is_async else 1
    return InFlight(tokens, batches, 1 + drafts * batches)


def ask_vllm(cases):
    """In a process of its own: vLLM's answer to each case, from our specs."""
    import tempfile

    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.math_utils import cdiv
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

    from dsv4_rocm.cache.specs import to_vllm
    from dsv4_rocm.testing import vllm_planner
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
    for name, rows, tokens, is_async, length, pages, drafts in cases:
        config.scheduler_config.max_num_batched_tokens = tokens
        config.scheduler_config.async_scheduling = is_async
        config.model_config.max_model_len = length
        flight = flight_of(tokens, is_async, drafts) if pages == "gapped" else None
        specs = {key: to_vllm(layout, flight) for key, layout in caches_of(name, rows).items()}
        planned = vllm_planner.plan(config, specs, MEMORY.get(name, GIB))
        groups = planned.kv_cache_groups
        block = vllm_planner.bytes_per_block(config, groups)
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
            "concurrency": get_max_concurrency_for_kv_cache_config(config, planned),
        }
        config.model_config.max_model_len = MILLION
        usable = MEMORY.get(name, GIB) - block
        answer["largest"] = vllm_planner.largest_length(config, groups, usable)
        answers.append(answer)
    return answers


@pytest.fixture(scope="module", params=["installed", vllm_releases.V0_33.version])
def answers(request, tmp_path_factory):
    """Of the installed vLLM and of the other release of the window."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DSV4_ROCM_", "VLLM_"))}
    clean |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if request.param != "installed":
        try:
            other = vllm_releases.runnable(vllm_releases.V0_33, tmp_path_factory.mktemp("vllm") / request.param)
        except OSError as error:
            pytest.skip(f"vLLM {request.param}'s sources cannot be fetched: {error}")
        clean["PYTHONPATH"] = os.pathsep.join([str(other), *filter(None, [clean.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, __file__], input=json.dumps(CASES), env=clean, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_equal_to_vllm(case, answers):
    name, rows, tokens, is_async, length, pages, drafts = case
    pool = make_pool(caches_of(name, rows))
    flight, pages = flight_of(tokens, is_async, drafts), StatePages(pages)
    blocks = MEMORY.get(name, GIB) // pool.block_bytes
    assert answers[case] == {
        "tokens_in_flight": flight.tokens,
        "groups": [sorted(group.caches) for group in pool.groups],
        "block_sizes": [group.block_tokens for group in pool.groups],
        "block_bytes": pool.block_bytes,
        "blocks": blocks,
        "columns": list(pool.columns(length, flight, pages)),
        "concurrency": blocks / pool.request_blocks(length, flight, pages),
        "largest": pool.largest_length(blocks, MILLION, flight, pages),
    }


def plan_of(model="flash", gpu="MI325X", **flags):
    return make_plan(read_flags(model, gpu, **flags))


def run(*arguments):
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def test_published_bytes_of_a_sequence():
    """9.62 GiB for Pro at 1M in bf16 is without compressor state; DeepSeek sets 83.9 GiB against it."""
    caches = caches_of("pro", "bf16")
    assert sequence_bytes(caches, MILLION) / GIB == pytest.approx(9.6246, abs=1e-4)
    assert sequence_bytes(caches, MILLION, states=True) / GIB == pytest.approx(9.642, abs=1e-3)
    assert v32_style_bytes(len(PRO.layers), MILLION) / GIB == 83.875


@pytest.mark.parametrize(
    ("model", "index", "expected"),
    [("flash", "fp8", 3_915), ("flash", "mxfp4", 3_584.25), ("pro", "fp8", 5_609.25), ("pro", "mxfp4", 5_136.75)],
)
def test_bytes_per_token(model, index, expected):
    found = as_json(plan_of(model, gpus=8, indexer_kv_dtype=index))
    assert found["kv_bytes_per_token"] == expected
    assert found["page_bytes"]["index"] == {"fp8": 8_640, "mxfp4": 4_608}[index]


def test_index_rows_left_out_are_mxfp4_where_it_is_multiplied():
    chosen = {gpu: read_flags("flash", gpu).index.value for gpu in ("MI325X", "MI355X", "H200", "B200", "B300")}
    assert chosen == {"MI325X": "fp8", "MI355X": "mxfp4", "H200": "fp8", "B200": "mxfp4", "B300": "mxfp4"}
    assert read_flags("flash", "MI355X", kv_cache_dtype="bfloat16").index is Encoding.BF16
    assert read_flags("flash", "MI355X", indexer_kv_dtype="fp8").index is Encoding.FP8
    assert read_flags("flash", "MI325X", indexer_kv_dtype="mxfp4").index is Encoding.MXFP4


def test_weights_are_those_of_the_published_checkpoints():
    """148.66 GiB (Flash) and 865 GB (Pro) on disk, with the draft layer: one SWA-only block and two projections."""
    published = {"flash": (148.66 * GIB, 0.02 * GIB), "pro": (865e9, 0.5e9)}
    for name, (size, tolerance) in published.items():
        spec = SPECS[name]
        draft = replace(spec, layers=(*spec.layers, LayerSpec(len(spec.layers), LayerKind.SWA, False)))
        projections = 2 * (spec.hidden_size**2 + (spec.hidden_size // 128) ** 2)
        assert stored_bytes(draft) + projections == pytest.approx(size, abs=tolerance)


def test_weights_are_shared_as_the_layers_share_them():
    one, tensor, data = (weights_per_gpu(FLASH, split) for split in (Parallelism(), Parallelism(8), Parallelism(1, 8)))
    assert one.experts == 8 * tensor.experts == 8 * data.experts
    assert one.wo_a == 8 * tensor.wo_a == data.wo_a
    assert (one.linears, one.rest) == (data.linears, data.rest)
    assert one.linears / 8 < tensor.linears < one.linears
    assert weights_per_gpu(FLASH, Parallelism(1, 8, True)) == data
    assert one.wo_a == 2 * sum(1024 * 8 * 4096 for _ in FLASH.layers)


def test_the_pool_takes_what_is_left():
    """One Flash on one MI325X, in GiB: 230.4 of 256, less 146.64 of weights and what a step needs."""
    plan = plan_of(max_num_batched_tokens=8_192, max_num_seqs=512)
    beside = {workspace.name: workspace.bytes / GIB for workspace in plan.workspaces}
    assert plan.weights.total / GIB == pytest.approx(146.64, abs=0.01)
    assert beside == {
        "indexer logits": 0.5,  # 8,192 rows of 262,144 entries would be 8 GiB: the cap holds
        "prefill": pytest.approx(8_192 * (48 * 4_096 + 4 * 64 * 512 + 12 * (4_096 + 3 * 2_048)) / GIB),
        "sampler": pytest.approx(8 * 512 * 129_280 / GIB),
        "graphs": 1.0,
        "runtime": 1.5,
    }
    assert plan.kv_bytes / GIB == pytest.approx(230.4 - 146.64 - sum(beside.values()), abs=0.01)
    assert plan_of(util=0.8).kv_bytes - plan_of(util=0.5).kv_bytes == pytest.approx(0.3 * 256 * GIB, abs=1)
    eager = plan_of(max_num_batched_tokens=8_192, max_num_seqs=512, eager=True)
    assert eager.kv_bytes - plan.kv_bytes == GIB
    short = plan_of(max_num_batched_tokens=256, max_model_len=4_096)
    assert short.workspaces[0].bytes == 4 * 256 * 1_024


def test_published_concurrency():
    """20.43x (TP8) and 156.9x (DP8) for Flash at 1M on 8 B200, charged as upstream charges.

    The log's other flags are not published. Assumed: fp8 rows and index, 8,192 tokens in flight in one batch, 0.95 of
    the memory, 512 sequences; weights without draft layers; this package's workspace estimates.
    """
    flags = {"gpus": 8, "util": 0.95, "max_num_batched_tokens": 8_192, "async_scheduling": False, "max_num_seqs": 512}
    flags |= {"indexer_kv_dtype": "fp8"}
    found = {"tp": plan_of(gpu="B200", **flags), "dp": plan_of(gpu="B200", data=8, expert=True, **flags)}
    assert found["tp"].concurrency(MILLION, StatePages.DENSE) == pytest.approx(20.43, rel=0.1)
    assert found["dp"].concurrency(MILLION, StatePages.DENSE) == pytest.approx(156.9, rel=0.1)
    ours = {name: plan.concurrency(MILLION) for name, plan in found.items()}
    assert ours == {"tp": pytest.approx(34.8, abs=0.1), "dp": pytest.approx(261.6, abs=0.1)}
    for plan in found.values():
        upstream = plan.concurrency(MILLION, StatePages.DENSE)
        assert f"1,048,576  {plan.concurrency(MILLION):>9,.2f} | {upstream:>9,.2f}" in render(plan)


TARGETS = [  # model, async scheduling, drafts, most GiB of state, requests of 1M tokens at least; 8,192 tokens a batch
    ("flash", False, 0, 0.11, 17),
    ("flash", True, 3, 0.2, 16),
    ("pro", False, 0, 0.16, 19),
    ("pro", True, 3, 0.3, 19),
]


@pytest.mark.parametrize(("name", "is_async", "drafts", "gib", "requests"), TARGETS)
def test_charge_by_vllm(name, is_async, drafts, gib, requests, answers):
    """vLLM's own planner on our specs: state of a request, and requests in the 71 GiB (118) of an MI325X."""
    answer = answers[name, "fp8", 8_192, is_async, MILLION, "gapped", drafts]
    state = sum(n for n, size in zip(answer["columns"], answer["block_sizes"], strict=True) if size in (4, 8))
    assert state * answer["block_bytes"] / GIB <= gib
    assert answer["concurrency"] >= requests
    upstream = answers[name, "fp8", 8_192, is_async, MILLION, "dense", 0]
    assert answer["concurrency"] > 1.6 * upstream["concurrency"]


def test_pages_that_a_connector_reads_are_held_longer():
    pool = make_pool(caches_of("flash", "fp8"))
    early, late = (InFlight(8_192, 2, 7, early) for early in (True, False))
    columns = [pool.columns(MILLION, flight, StatePages.GAPPED) for flight in (early, late)]
    assert columns == [(132, 132, 4_096, 81, 38), (260, 260, 4_096, 154, 57)]


def test_charge_of_vllms_own_windows():
    flags = {"max_num_batched_tokens": 8_192, "async_scheduling": False, "state_pages": StatePages.DENSE}
    assert plan_of("flash", **flags).charge("state") / GIB == pytest.approx(2.886, abs=5e-4)
    assert plan_of("pro", gpus=8, **flags).charge("state") / GIB == pytest.approx(4.135, abs=5e-4)


RECIPE = ["--model", "flash", "--gpu", "MI325X", "--kv-cache-dtype", "fp8_e4m3", "--max-model-len", 4096]
RECIPE += ["--max-num-batched-tokens", 256, "--kv-cache-memory-bytes", 10_000_000_000, "--enforce-eager"]


def test_recipe_is_explained_in_one_line():
    done = run(*RECIPE, "--no-async-scheduling")
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("why: ")]
    assert line == (
        "why: --kv-cache-memory-bytes 10000000000 is 9,977 blocks of 1,002,240 B; a request of 4,096 tokens with "
        "256 tokens in flight is charged 79 (14 window + 16 entries + 49 state), so 126.3 fit; "
        "at vLLM's default --max-num-batched-tokens 16384 it would be 321 and 31.1"
    )


def test_json_has_what_scripts_read():
    done = run(*RECIPE, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["fits"] is True
    assert found["limiting"] == "state charge of tokens in flight"
    assert found["group_block_sizes"] == [64, 64, 256, 4, 8]
    assert found["blocks"] == 10_000_000_000 // 1_002_240
    assert found["tokens_in_flight"] == 512
    assert found["state_charge_bytes_per_request"] == (13 + 36) * 1_002_240
    assert found["state_charge_bytes_per_request_dense"] == (131 + 81) * 1_002_240
    assert found["window_charge_bytes_per_request"] == 2 * 7 * 1_002_240
    assert found["window_charge_bytes_per_request_dense"] == 2 * 11 * 1_002_240
    assert found["fixed_bytes_per_request"] == (2 * 3 + 3 + 17) * 1_002_240
    assert found["max_context"] == MILLION
    entries = {"8192": 32, "131072": 512, "1048576": 4_096}
    assert found["concurrency"] == {key: pytest.approx(9_977 / (n + 14 + 49)) for key, n in entries.items()}
    assert found["concurrency_dense"] == {key: pytest.approx(9_977 / (n + 22 + 212)) for key, n in entries.items()}


def test_a_million_tokens_that_do_not_fit():
    done = run("--gpu", "MI325X", "--kv-cache-memory-bytes", 4_500_000_000)
    assert done.exit_code == 1
    plan = plan_of(kv_cache_memory_bytes=4_500_000_000)
    assert f"{plan.missing_bytes / GIB:.2f} GiB missing on each GPU (kv memory)" in done.stdout
    assert f"--max-model-len {plan.max_context} fits" in done.stdout
    assert 0 < plan.max_context < MILLION
    assert plan_of(kv_cache_memory_bytes=4_500_000_000, max_model_len=plan.max_context).fits
    assert not plan_of(kv_cache_memory_bytes=4_500_000_000, max_model_len=plan.max_context + 1).fits
    enough = 4_500_000_000 + plan.missing_bytes
    assert plan_of(kv_cache_memory_bytes=enough).fits
    assert not plan_of(kv_cache_memory_bytes=enough - plan.pool.block_bytes).fits


def test_weights_that_do_not_fit():
    plan = plan_of("pro", "H200", gpus=4)
    assert (plan.fits, plan.limiting, plan.blocks, plan.max_context) == (False, "weights and workspaces", 0, 0)
    assert plan.overcommitted_bytes == -plan.kv_bytes > 60 * GIB
    assert "no context length fits" in render(plan)
    assert [change.flags for change in changes(plan)] == ["--gpus 8 --tp 8 --dp 1"]


def test_a_pool_that_the_gpu_has_no_room_for():
    plan = plan_of(kv_cache_memory_bytes=200 * GIB)
    assert (plan.fits, plan.limiting) == (False, "weights and workspaces")
    assert plan.missing_bytes == plan.overcommitted_bytes == 200 * GIB - plan.room_bytes
    assert plan_of(kv_cache_memory_bytes=plan.room_bytes).fits


def test_what_would_help_does():
    plan = plan_of("flash", "MI355X", gpus=4)
    better = {change.flags: change.plan.concurrency(MILLION) for change in changes(plan)}
    assert "--max-num-batched-tokens 2048" in better
    dense = plan_of("flash", "MI355X", gpus=4, state_pages=StatePages.DENSE)
    assert "--no-async-scheduling" in {change.flags for change in changes(dense)}
    assert "--gpus 4 --tp 1 --dp 4 --ep" in better
    assert all(value >= 1.05 * plan.concurrency(MILLION) for value in better.values())
    assert "--kv-cache-dtype fp8" in {change.flags for change in changes(plan_of(kv_cache_dtype="bfloat16"))}


def test_few_sequences_limit_first():
    assert plan_of(max_num_seqs=2, max_model_len=8_192).limiting == "--max-num-seqs"


def test_offsets_past_32_bits():
    """Block 2143 of Flash is the first that starts past 2^31 bytes."""
    plan = plan_of(kv_cache_memory_bytes=10_000_000_000, max_model_len=4_096)
    assert plan.first_block_past_32_bits == 2_143
    assert 2_142 * plan.pool.block_bytes < 2**31 <= 2_143 * plan.pool.block_bytes
    assert plan.largest_offset == 9_977 * 1_002_240 - 1
    assert "aiter deepgemm_fp8_paged_mqa_logits" in as_json(plan)["library_kernels_out_of_reach"]
    assert "aiter deepgemm_fp8_paged_mqa_logits ends there" in render(plan)
    small = plan_of(kv_cache_memory_bytes=2_000_000_000, max_model_len=4_096, max_num_batched_tokens=256)
    assert small.first_block_past_32_bits is None
    assert as_json(small)["library_kernels_out_of_reach"] == []
    assert "32-bit offsets reach all of it" in render(small)


def test_a_checkpoint_directory(tmp_path):
    from dsv4_rocm.testing.tiny_config import DEMO, config_json

    (tmp_path / "config.json").write_text(json.dumps(config_json(DEMO, "bfloat16")))
    plan = plan_of(str(tmp_path))
    assert plan.fits
    assert plan.pool.block_bytes == 95_616
    assert "1,024 tokens" not in one_line(plan)


REFUSED = {
    "gpu": (["--gpu", "MI300A"], "--gpu must be one of MI325X, MI355X, H200, B200, B300, got MI300A"),
    "model": (["--model", "/nowhere"], "--model must be flash, pro or a directory with a config.json, got /nowhere"),
    "tp": (["--tp", "3"], "--tp must divide the model's 8 output groups, got 3; use one of 1, 2, 4, 8"),
    "product": (["--gpus", "8", "--tp", "4", "--dp", "4"], "--gpus 8 is not --tp 4 x --dp 4 = 16"),
    "sequence-parallel": (["--tp", "2", "--dp", "4", "--ep"], "is sequence-parallel MoE, which is not supported"),
    "cache dtype": (["--kv-cache-dtype", "fp8_e5m2"], "--kv-cache-dtype must be auto, fp8 or bfloat16"),
    "index dtype": (["--indexer-kv-dtype", "nvfp4"], "indexer_kv_dtype=nvfp4 is not available"),
    "mxfp4 with bf16": (["--kv-cache-dtype", "bfloat16", "--indexer-kv-dtype", "mxfp4"], "leave it out or use bf16"),
    "length": (["--max-model-len", "2000000"], "--max-model-len must be at most the model's 1048576 positions"),
    "util": (["--util", "1.5"], "--util must be above 0 and at most 1, got 1.5"),
    "drafts": (["--num-speculative-tokens", "-1"], "--num-speculative-tokens must be at least 0, got -1"),
    "tokens": (["--max-num-batched-tokens", "0"], "--max-num-batched-tokens must be at least 1, got 0"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_in_one_line(arguments, message):
    done = run(*arguments)
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_plan_needs_no_vllm():
    code = "import sys; sys.modules['vllm'] = None; from dsv4_rocm.cli import app; app(['plan', '--gpus', '2'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "would help: --max-num-batched-tokens" in done.stdout


if __name__ == "__main__":
    stdout, sys.stdout = sys.stdout, sys.stderr
    json.dump(ask_vllm([tuple(case) for case in json.load(sys.stdin)]), stdout)
