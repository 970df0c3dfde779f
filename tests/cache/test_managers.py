"""Our KV cache managers under vLLM's real scheduler, and what they override of vLLM."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4_rocm.testing import vllm_releases

HERE = Path(__file__).parent
SIMULATION, HAND_OVER = HERE / "scheduler_simulation.py", HERE / "hand_over.py"
# Every kind of run once: plain, async, with drafts, both, and with pages held as for a KV connector.
RUNS = [
    {"drafts": drafts, "is_async": is_async, "early": early, "batched": batched, "share": share}
    for drafts, is_async, early, batched, share in [
        (0, False, True, 1024, 1.1),
        (0, True, True, 500, 2),
        (3, False, True, 4096, 2),
        (3, True, True, 256, 1.1),
        (3, True, False, 1024, 2),
    ]
]
RUNS = [run | {"retention": 256, "longest": 9_000, "seed": seed} for seed, run in enumerate(RUNS)]
# With drafts, but pages freed as if none could be taken back. (Pages held for a connector wait for what is settled.)
SPOILT = [
    run | {"rollback": 1, "batched": 256, "share": 2, "requests": 30} for run in RUNS if run["drafts"] and run["early"]
]


def simulate(examples, runs):
    return run(SIMULATION, {"examples": examples, "cases": runs})


def run(program, wanted, vllm=None):
    """What a program answers, with the installed vLLM or that of a directory."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DSV4_ROCM_", "VLLM_"))}
    clean |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_PLUGINS": ""}
    if vllm is not None:
        clean["PYTHONPATH"] = os.pathsep.join([str(vllm), *filter(None, [clean.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(program)],
        input=json.dumps(wanted),
        env=clean,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def answer():
    return simulate(6, RUNS + SPOILT)


def test_every_row_that_a_step_reads_is_there(answer):
    assert answer["failures"][: len(RUNS)] == [None] * len(RUNS)


def test_the_runs_hold_what_they_are_for(answer):
    total = answer["total"]
    assert min(total[name] for name in ("hits", "preemptions", "drafts taken back")) >= 5
    assert total["rows read"] > 100_000
    assert total["rows not stored"] > 0.1 * total["rows stored"]


def test_too_little_slack_is_noticed(answer):
    failures = answer["failures"][len(RUNS) :]
    assert len(failures) == len(SPOILT)
    assert all(re.search(r"row \d+ .*(has no page|is another's in block)", str(failure)) for failure in failures)


@pytest.mark.slow
def test_every_row_is_there_in_the_other_release(tmp_path):
    other = vllm_releases.runnable(vllm_releases.V0_33, tmp_path / "vllm")
    assert run(SIMULATION, {"examples": 6, "cases": RUNS}, other)["failures"] == [None] * len(RUNS)
    assert run(HAND_OVER, LENGTHS, other)["pages"] > 100


@pytest.mark.slow
def test_many_runs():
    simulate(150, [])


# Around the ends of groups, pages and blocks.
LENGTHS = [1, 2, 3, 4, 5, 127, 128, 129, 255, 256, 257, 259, 383, 384, 511, 512, 513, 640, 769, 1099, 4096, 4097, 5000]


def test_a_decode_server_finds_what_a_prefill_server_kept():
    assert run(HAND_OVER, LENGTHS)["pages"] > 100


@pytest.mark.slow
def test_hand_over_at_every_length():
    run(HAND_OVER, list(range(1, 1100)))


SIGNATURES = {
    "get_num_blocks_to_allocate": [
        "request_id",
        "num_tokens",
        "new_computed_blocks",
        "total_computed_tokens",
        "num_local_computed_tokens",
        "num_tokens_main_model",
        "apply_admission_cap",
        "prefill_end",
    ],
    "add_local_computed_blocks": [
        "request_id",
        "new_computed_blocks",
        "num_local_computed_tokens",
        "num_external_computed_tokens",
    ],
    "allocate_external_computed_blocks": [
        "request_id",
        "num_local_computed_tokens",
        "num_external_computed_tokens",
        "record_for_zeroing",
    ],
    "allocate_new_blocks": ["request_id", "num_tokens", "num_tokens_main_model"],
    "remove_skipped_blocks": ["request_id", "processed_computed_tokens", "num_prompt_tokens"],
    "pop_blocks_for_free": ["request_id"],
    "get_num_skipped_tokens": ["num_computed_tokens"],
}


def test_signatures_of_what_we_override():
    """vLLM's methods are internal to it: when one changes, our override has to follow."""
    from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager

    from dsv4_rocm.cache.managers import CompressorStateManager, WindowManager

    def parameters(method):
        return [name for name in inspect.signature(method).parameters if name != "self"]

    for manager in (SlidingWindowManager, CompressorStateManager):
        assert {name: parameters(getattr(manager, name)) for name in SIGNATURES} == SIGNATURES
    ours = {name for cls in (WindowManager, CompressorStateManager) for name in vars(cls) if not name.startswith("_")}
    assert ours == set(SIGNATURES)


def test_a_spec_without_its_manager_is_noticed(monkeypatch):
    from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

    from dsv4_rocm.cache.layout import Encoding, swa_layout
    from dsv4_rocm.cache.managers import require_registered
    from dsv4_rocm.cache.retention import InFlight
    from dsv4_rocm.cache.specs import to_vllm

    spec = to_vllm(swa_layout(Encoding.FP8), InFlight(8_192))
    monkeypatch.setattr(KVCacheSpecRegistry, "get_manager_class", lambda _: dict)
    with pytest.raises(RuntimeError, match="manage WindowSpec with dict instead of WindowManager"):
        require_registered(spec)
