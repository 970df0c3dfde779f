"""Commands that users copy, verbatim: what each of them will do here."""

from dataclasses import replace

import pytest

from dsv4_rocm.recipes.lint import lint
from dsv4_rocm.recipes.pair import lint_pair
from dsv4_rocm.recipes.subject import read_script, split_shell
from dsv4_rocm.recipes.translations import RENAMED_FLAGS

MXFP4 = ("note", "use_fp4_indexer_cache=True (older recipes) is read as indexer_kv_dtype=mxfp4")
NO_PARSER = ("warning", "without --reasoning-parser deepseek_v4")
NO_RPC = ("warning", "VLLM_RPC_TIMEOUT is read by nothing")
MEGA_MOE = ("error", "--moe-backend deep_gemm_mega_moe is a part of vLLM's own model")
HYBRID = ("note", "--no-disable-hybrid-kv-cache-manager is the default here")
HANDSHAKE = ("warning", "enforce_handshake_compat is read by NIXL's connectors only")
# (case, number of the command) -> what must be said; there is no error beside those named.
EXPECTED = {
    ("k1", 0): (MXFP4,),
    ("k2", 0): (MXFP4, MEGA_MOE, NO_PARSER),
    ("k3", 0): (
        MXFP4,
        ("note", "--tensor-parallel-size 1 --pipeline-parallel-size 1 is the default"),
    ),
    ("k4", 0): (),
    ("k5", 0): (
        ("note", "--kv-cache-dtype fp8_e4m3 is read as fp8"),
        ("note", "--moe-backend triton_unfused needs the triton_kernels package; without the flag AITER's"),
        ("note", "--enable-chunked-prefill is the default"),
        ("note", "Think Max needs --max-model-len 393216 or more, got 4096"),
        ("note", "requests of 4,096 tokens at once; limited by"),
        NO_PARSER,
    ),
    ("k6", 0): (),
    ("k7-mooncake", 0): (NO_RPC, HYBRID, HANDSHAKE, ("note", "MooncakeConnector is accepted")),
    ("k7-mooncake", 1): (NO_RPC, HYBRID, HANDSHAKE),
    ("k7-nixl", 0): (NO_RPC, HYBRID, ("note", "NixlConnector is accepted")),
    ("k7-nixl", 1): (NO_RPC, HYBRID),
    ("k8-b300", 0): (MXFP4,),
    ("k8-h200", 0): (("error", "GiB are missing on each H200 (weights and workspaces); no context length fits"),),
    ("k8-mi355x", 0): (),
    ("k9-simple", 0): (("note", "SimpleCPUOffloadConnector is accepted"),),
    ("k9-mooncake", 0): (("error", "needs MOONCAKE_CONFIG_PATH"),),
    ("k9-lmcache", 0): (("error", "LMCacheMPConnector switches the hybrid KV cache manager off"),),
    ("k1-on-amd", 0): (
        ("error", "tensor 1 x pipeline 1 x data 4 parallel is 4 GPUs, and the machine has 2"),
        ("warning", "VLLM_ROCM_USE_AITER=1 is not set"),
    ),
    ("k2-on-amd", 0): (MEGA_MOE,),
    ("k5-on-nvidia", 0): (("error", "GiB are missing on each H200"),),
}


@pytest.mark.parametrize("key", EXPECTED, ids=lambda key: f"{key[0]}-{key[1]}")
def test_what_a_published_command_will_do(key, findings):
    found = findings[key]
    for level, text in EXPECTED[key]:
        assert any(one.level == level and text in one.message for one in found), (text, found)
    expected_errors = sum(level == "error" for level, _ in EXPECTED[key])
    assert sum(one.level == "error" for one in found) == expected_errors


def test_every_command_is_expected_to_do_something(published):
    assert set(EXPECTED) == set(published)


@pytest.mark.parametrize("name", ["k7-mooncake", "k7-nixl"])
def test_published_pairs_fit_together(name, published, answers, router):
    subjects = [published[name, 0], published[name, 1]]
    assert lint_pair(subjects, [answers[one.key] for one in subjects], router[name]) == []


def test_clients_are_no_command(root):
    text = (root / "tests/recipes/published/k10.sh").read_text()
    with pytest.raises(ValueError, match="expected a command: vllm serve MODEL"):
        read_script(split_shell(text))


def test_flags_of_older_versions_get_their_new_spelling(old_flags):
    subject, answer = old_flags
    messages = [one.message for one in lint(subject, answer) if one.rule == "parse"]
    for flag, new in RENAMED_FLAGS.items():
        assert any(message.startswith(f"{flag} is no flag") and new in message for message in messages)
    assert any(message.startswith("--moe-backend: invalid choice: 'nope'") for message in messages)
    assert any(message.startswith("--block-size: invalid int value: 'x'") for message in messages)
    assert len(messages) == len(RENAMED_FLAGS) + 2


def test_a_plan_that_is_70_gib_too_large_names_the_context_that_fits(too_large):
    (error,) = [one for one in lint(*too_large) if one.level == "error"]
    assert error.rule == "memory"
    missing, context = float(error.message.split()[0]), int(error.message.split()[-2])
    assert 65 < missing < 75
    assert 100_000 < context <= 1_048_576


def with_config(answer, **changes):
    return replace(answer, config={**answer.config, **changes}, asked={**answer.asked, "cudagraph_mode": None})


# support of the attention, mode that is asked for -> whether less is captured
GRAPHS = [("NEVER", "FULL_AND_PIECEWISE", True), ("NEVER", "NONE", False), ("UNIFORM_BATCH", "FULL", True)]
GRAPHS += [("UNIFORM_BATCH", "FULL_DECODE_ONLY", False), ("ALWAYS", "FULL", False)]


@pytest.mark.parametrize(("support", "mode", "less"), GRAPHS)
def test_a_graph_downgrade_is_said(support, mode, less, published, answers):
    subject = published["k6", 0]
    answer = with_config(answers[subject.key], graph_support=support, cudagraph_mode=mode)
    assert any(one.rule == "graphs" for one in lint(subject, answer)) is less


@pytest.mark.parametrize("ops", [[], ["indexer_select"]])
def test_ops_in_plain_torch_are_said(ops, published, answers):
    subject = published["k1", 0]
    found = lint(subject, with_config(answers[subject.key], plain_torch_ops=ops))
    assert [one.message.rsplit(": ")[-1] for one in found if one.rule == "slow"] == ops
