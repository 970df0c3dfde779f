"""Rules of the lint that no published command breaks: a command changed by one thing, and what is said then."""

from dataclasses import replace

import pytest

from dsv4_rocm.recipes.lint import lint
from dsv4_rocm.recipes.products import product

MTP = '{"method":"mtp","num_speculative_tokens":3}'
# case -> (published command, product, added words, added env, configuration that vLLM makes of it, (level, message))
CASES = {
    "mtp of a dspark checkpoint": (
        ("k4", "RTX-PRO-6000", ["--speculative-config", MTP], {}, {}),
        ("error", "Flash-0731 carries DSpark stages; use method dspark"),
    ),
    "dspark of the preview": (
        ("k6", "MI355X", ["--speculative-config", '{"method":"dspark"}'], {}, {}),
        ("error", "Flash carries an MTP layer; use method mtp"),
    ),
    "moe backend of the other vendor": (
        ("k6", "MI355X", ["--moe-backend", "flashinfer_trtllm"], {}, {}),
        ("error", "flashinfer_trtllm is for the other vendor's GPUs; leave --moe-backend out on MI355X (gfx950)"),
    ),
    "aiter on nvidia": (
        ("k4", "H200", ["--moe-backend=aiter"], {}, {}),
        ("error", "aiter is for the other vendor's GPUs; leave --moe-backend out on H200 (sm90)"),
    ),
    "aiter switched off": (
        ("k6", "MI355X", ["--moe_backend", "aiter"], {"VLLM_ROCM_USE_AITER": "0"}, {}),
        ("error", "--moe-backend aiter needs VLLM_ROCM_USE_AITER=1"),
    ),
    "too few visible devices": (
        ("k6", "MI355X", [], {"HIP_VISIBLE_DEVICES": "0,1"}, {}),
        ("error", "HIP_VISIBLE_DEVICES=0,1 shows 2 GPUs, and tensor 4 x pipeline 1 x data 1 parallel takes 4"),
    ),
    "too many visible devices": (
        ("k6", "MI355X", [], {"HIP_VISIBLE_DEVICES": "0,1,2,3,4"}, {}),
        ("warning", "shows 5 GPUs"),
    ),
    "utilization beside a pool": (
        ("k5", "MI325X", ["--gpu-memory-utilization", "0.9"], {}, {}),
        ("warning", "--gpu-memory-utilization has no effect beside --kv-cache-memory-bytes"),
    ),
    "graphs in eager mode": (
        ("k5", "MI325X", ["--max-cudagraph-capture-size", "64"], {}, {}),
        ("warning", "--enforce-eager: the graphs that are asked for as well are not captured"),
    ),
    "a tokenizer without a template": (
        ("k6", "MI355X", [], {}, {"tokenizer_mode": "auto"}),
        ("error", "--tokenizer-mode deepseek_v4 is missing"),
    ),
    "no port for nixl": (
        ("k6", "MI355X", ["--kv-transfer-config", '{"kv_connector":"NixlConnector"}'], {}, {}),
        ("warning", "VLLM_NIXL_SIDE_CHANNEL_PORT is not set: the default 5600 clashes"),
    ),
    "moriio": (
        ("k6", "MI355X", ["--kv-transfer-config.kv_connector", "MoRIIOConnector"], {}, {}),
        ("error", "kv_connector=MoRIIOConnector was never run with these caches"),
    ),
    "a split the model has not": (
        ("k6", "MI355X", [], {}, {"tensor": 16}),
        ("error", "--tp must divide the model's 8 output groups, got 16"),
    ),
    "a context that is found out": (
        ("k6", "H200", [], {}, {"tensor": 1, "max_num_batched_tokens": 1024, "utilization": 1.0}),
        ("error", "GiB are missing on each H200"),
    ),
}


@pytest.fixture
def said(published, answers):
    def run(name, gpu, words, env, config):
        before = published[name, 0]
        answer = answers[before.key]
        assert answer.config is not None
        subject = replace(before, argv=(*before.argv, *words), env={**before.env, **env}, gpu=product(gpu))
        return lint(subject, replace(answer, config={**answer.config, **config}))

    return run


@pytest.mark.parametrize(("case", "expected"), CASES.values(), ids=CASES.keys())
def test_rule(case, expected, said):
    level, text = expected
    name, _, *_ = case
    before = said(name, "MI325X" if name == "k5" else "RTX-PRO-6000" if name == "k4" else "MI355X", [], {}, {})
    assert not any(text in one.message for one in before)
    assert any(one.level == level and text in one.message for one in said(*case))


def test_nvfp4_experts_are_refused(published, answers):
    subject = published["k8-mi355x", 0]
    renamed = replace(subject, argv=(subject.argv[0] + "-NVFP4", *subject.argv[1:]))
    assert any("NVFP4 experts are not loaded" in one.message for one in lint(renamed, answers[subject.key]))


def test_another_model_is_refused(published, answers):
    subject = published["k6", 0]
    other = replace(subject, argv=("meta/llama", *subject.argv[1:]))
    assert any("meta/llama: expected DeepSeek-V4" in one.message for one in lint(other, answers[subject.key]))


def test_auto_context_is_estimated(published, answers):
    """A pool too small for the whole context is no error when vLLM may choose the context."""
    subject = published["k6", 0]
    answer = answers[subject.key]
    config = {**answer.config, "kv_cache_memory_bytes": 3_000_000_000}
    fixed = replace(answer, config=config)
    assert any(one.rule == "memory" and one.level == "error" for one in lint(subject, fixed))
    chosen = replace(fixed, asked={**answer.asked, "max_model_len_auto": True})
    (found,) = [one for one in lint(subject, chosen) if one.rule == "memory"]
    assert (found.level, found.message.startswith("--max-model-len auto comes to about ")) == ("note", True)
