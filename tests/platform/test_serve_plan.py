"""What a server accepts, translates and refuses, through vLLM's own configuration (F-05, F-06, F-10)."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from dsv4_rocm import arch
from dsv4_rocm.testing.engine import V2_RUNNER
from dsv4_rocm.testing.tiny_checkpoint import write_checkpoint
from dsv4_rocm.testing.tiny_config import DEMO, TinyDSpark, config_json
from dsv4_rocm_platform.refusals import _check_speculation
from dsv4_rocm_platform.serve_plan import translate_attention_config

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
CONNECTOR_WITHOUT_HYBRID = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
CONNECTOR_WITH_HYBRID = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}

MTP = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
DSPARK = {
    "speculative_config": {"method": "dspark", "num_speculative_tokens": 7, "draft_sample_method": "greedy"},
}

# case -> (arguments, words the one error must hold)
REFUSED = {
    "block-size-128": ({"block_size": 128}, ["--block-size must be 256", "got 128"]),
    "block-size-16": ({"block_size": 16}, ["--block-size must be 256", "got 16"]),
    "kv-fp8-e5m2": ({"kv_cache_dtype": "fp8_e5m2"}, ["--kv-cache-dtype", "got fp8_e5m2", "--kv-cache-dtype fp8"]),
    "kv-float16": ({"kv_cache_dtype": "float16"}, ["--kv-cache-dtype", "got float16"]),
    "kv-fp8-inc": ({"kv_cache_dtype": "fp8_inc"}, ["--kv-cache-dtype", "got fp8_inc"]),
    "kv-nvfp4-ds-mla": ({"kv_cache_dtype": "nvfp4_ds_mla"}, ["--kv-cache-dtype", "got nvfp4_ds_mla"]),
    "index-mxfp4-of-bf16": (
        {"attention_config": {"indexer_kv_dtype": "mxfp4"}, "kv_cache_dtype": "bfloat16"},
        ["indexer_kv_dtype=mxfp4", "not available with bf16 rows"],
    ),
    "index-bf16": ({"attention_config": {"indexer_kv_dtype": "bf16"}}, ["indexer_kv_dtype=bf16", "not available"]),
    "attention-backend": ({"attention_backend": "TRITON_MLA"}, ["--attention-backend", "TRITON_MLA", "leave it out"]),
    "pooling": ({"runner": "pooling"}, ["--runner must be generate", "got pooling"]),
    "decode-context-parallel": (
        {"decode_context_parallel_size": 2, "tensor_parallel_size": 2},
        ["--decode-context-parallel-size must be 1", "got 2"],
    ),
    "prefill-context-parallel": ({"prefill_context_parallel_size": 2}, ["--prefill-context-parallel-size", "got 2"]),
    "quantization-awq-of-fp8": ({"quantization": "awq"}, ["--quantization must be fp8", "stored in FP8", "got awq"]),
    "quantization-int8": ({"quantization": "experts_int8"}, ["--quantization must be fp8", "got experts_int8"]),
    "quantization-of-plain": ({"quantization": "fp8"}, ["--quantization fp8 needs", "leave it out"]),
    "lora": ({"enable_lora": True}, ["--enable-lora", "leave it out"]),
    "expert-parallel-host": (
        {"enable_expert_parallel": True, "tensor_parallel_size": 2},
        ["--enable-expert-parallel", "2 ranks"],
    ),
    "sequence-parallel-moe": (
        {"enable_expert_parallel": True, "tensor_parallel_size": 2, "data_parallel_size": 2},
        ["sequence-parallel MoE", "tensor 2 x data 2"],
    ),
    "dbo": ({"enable_dbo": True}, ["--enable-dbo", "leave it out"]),
    "no-hybrid-manager": ({"disable_hybrid_kv_cache_manager": True}, ["--disable-hybrid-kv-cache-manager"]),
    "connector": ({"kv_transfer_config": CONNECTOR_WITHOUT_HYBRID}, ["LMCacheConnectorV1", "hybrid KV cache manager"]),
    "speculation-ngram": (
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
        ["--speculative-config method=ngram", "use mtp or dspark"],
    ),
    "speculation-too-deep": (
        {"speculative_config": {"method": "mtp", "num_speculative_tokens": 8}},
        ["num_speculative_tokens must be at most 7", "got 8"],
    ),
    "speculation-mtp-of-dspark": (MTP, ["a dspark_block_size", "method=mtp", "use method=dspark"]),
    "speculation-dspark-of-mtp": (DSPARK, ["no dspark_block_size", "method=dspark", "use method=mtp"]),
    "speculation-without-layers": (MTP, ["config.json has no draft layers", "leave --speculative-config out"]),
    "speculation-without-weights": (MTP, ["model.safetensors.index.json has no draft weights", "mtp.*"]),
    "speculation-unknown-tensor": (MTP, ["no part of DeepSeek-V4 is called mtp.0.mystery.weight"]),
    "speculation-missing-tensor": (MTP, ["lacks mtp.0.e_proj.weight", "download it again"]),
    "skip-layers": ({"kv_cache_dtype_skip_layers": ["0"]}, ["--kv-cache-dtype-skip-layers", "leave it out"]),
    "fast-prefill": ({"kv_sharing_fast_prefill": True}, ["--kv-sharing-fast-prefill", "leave it out"]),
    "two-at-once": (
        {"block_size": 64, "kv_cache_dtype": "fp8_e5m2"},
        ["--block-size must be", "--kv-cache-dtype must"],
    ),
}

SPOILT = {
    "no-compress-ratios": ["config.json", "compress_ratios"],
    "no-tokenizer": ["tokenizer.json", "--tokenizer", "--skip-tokenizer-init"],
    "no-tokenizer-config": ["tokenizer_config.json", "--tokenizer"],
    "truncated-shard": ["model-00002-of-00002.safetensors is truncated", "download it again"],
    "missing-shard": ["model-00001-of-00002.safetensors", "does not exist", "download it again"],
    "unknown-tensor": ["layers.0.attn.mystery.weight", "no part of DeepSeek-V4"],
}

ACCEPTED = {
    "plain": ({}, {"rows": "fp8", "index": "fp8"}),
    "kv-fp8": ({"kv_cache_dtype": "fp8", "block_size": 256}, {"rows": "fp8", "index": "fp8"}),
    "kv-fp8-e4m3": ({"kv_cache_dtype": "fp8_e4m3"}, {"rows": "fp8"}),
    "kv-fp8-ds-mla": ({"kv_cache_dtype": "fp8_ds_mla"}, {"rows": "fp8"}),
    "index-mxfp4": ({"attention_config": {"indexer_kv_dtype": "mxfp4"}}, {"rows": "fp8", "index": "mxfp4"}),
    "kv-bfloat16": ({"kv_cache_dtype": "bfloat16"}, {"rows": "bf16"}),
    "fp32-oracle": ({"dtype": "float32"}, {"rows": "fp32", "index": "fp32"}),
    "fp32-weights-fp8-rows": ({"dtype": "float32", "kv_cache_dtype": "fp8"}, {"rows": "fp8"}),
    "index-fp8": ({"attention_config": {"indexer_kv_dtype": "fp8"}}, {"index": "fp8"}),
    "quantization-fp8": ({"quantization": "fp8"}, {"rows": "fp8"}),
    "chunks-of-64": ({"max_num_batched_tokens": 64}, {"max_num_batched_tokens": 64}),
    "tp2": ({"tensor_parallel_size": 2}, {"rows": "fp8"}),
    "ep-on-one-rank": ({"enable_expert_parallel": True}, {"rows": "fp8"}),
    "connector-with-hybrid": ({"kv_transfer_config": CONNECTOR_WITH_HYBRID}, {"rows": "fp8"}),
    "dummy-weights": ({"load_format": "dummy"}, {"rows": "fp8"}),
    "mtp-1": (MTP, {"rows": "fp8"}),
    "mtp-3": ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}}, {"rows": "fp8"}),
    "think-max": ({"max_model_len": 393216}, {"notes": []}),
}


def make_it_llama(values):
    values.clear()
    values |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "vocab_size": 2048}
    values |= {"num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 64, "torch_dtype": "float32"}
    values["max_position_embeddings"] = 8192


def spoil_drafts(checkpoint, spoil):
    """Checkpoints whose draft modules are of another kind, or incomplete."""
    dspark = {"dspark_block_size": 5, "dspark_noise_token_id": 7, "dspark_target_layer_ids": [3, 4, 5]}
    dspark |= {"dspark_markov_rank": 64, "num_nextn_predict_layers": 1}

    def no_layers(values):
        values.pop("num_nextn_predict_layers")
        values["compress_ratios"] = values["compress_ratios"][: values["num_hidden_layers"]]

    def change(name, edit):
        weights = "model.safetensors", "model.safetensors.index.json"
        target = spoil(name, without=(*weights, *SHARDS))
        tensors = {key: tensor for shard in SHARDS for key, tensor in load_file(checkpoint / shard).items()}
        tensors = {key: tensor.contiguous() for key, tensor in edit(tensors).items()}
        save_file(tensors, target / weights[0])
        (target / weights[1]).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, weights[0])}))
        return target

    return {
        "speculation-mtp-of-dspark": spoil("block-drafts", config=lambda values: values.update(dspark)),
        "speculation-dspark-of-mtp": (DSPARK, ["no dspark_block_size", "method=dspark", "use method=mtp"]),
        "speculation-without-layers": spoil("no-layers", config=no_layers),
        "speculation-without-weights": change(
            "no-drafts", lambda tensors: {k: t for k, t in tensors.items() if not k.startswith("mtp.")}
        ),
        "speculation-unknown-tensor": change(
            "unknown-draft", lambda tensors: tensors | {"mtp.0.mystery.weight": torch.zeros(4)}
        ),
        "speculation-missing-tensor": change(
            "missing-draft", lambda tensors: {k: t for k, t in tensors.items() if k != "mtp.0.e_proj.weight"}
        ),
    }


@pytest.fixture(scope="session")
def directories(checkpoint, spoil):
    """The spoilt checkpoints, each with one fault."""
    first, second = SHARDS
    made = {
        "no-compress-ratios": spoil("no-compress-ratios", config=lambda values: values.pop("compress_ratios")),
        "no-tokenizer": spoil("no-tokenizer", without=("tokenizer.json", "tokenizer_config.json")),
        "no-tokenizer-config": spoil("no-tokenizer-config", without=("tokenizer_config.json",)),
        "truncated-shard": spoil("truncated-shard", without=(second,)),
        "missing-shard": spoil("missing-shard", without=(first,)),
        "unknown-tensor": spoil("unknown-tensor", without=("model.safetensors.index.json",)),
    }
    plain = spoil("plain", config=lambda values: values.pop("quantization_config"))
    made |= dict.fromkeys(("fp32-oracle", "fp32-weights-fp8-rows", "quantization-int8", "quantization-of-plain"), plain)
    made["think-max"] = spoil("long", config=lambda values: values.update(max_position_embeddings=1 << 20))
    made["another-model"] = spoil("another-model", config=make_it_llama)
    made |= spoil_drafts(checkpoint, spoil)
    shard = (checkpoint / second).read_bytes()
    (made["truncated-shard"] / second).write_bytes(shard[: len(shard) // 2])
    extra = {"layers.0.attn.mystery.weight": torch.zeros(4)}
    save_file(extra, made["unknown-tensor"] / "model-00003-of-00003.safetensors")
    return made


@pytest.fixture(scope="module")
def outcomes(checkpoint, directories, drive):
    cases = {name: case for name, (case, _) in (REFUSED | ACCEPTED).items()} | {name: {} for name in SPOILT}
    cases["another-model"] = {"tokenizer_mode": "auto"}
    cases |= {"twice-given": {"twice": True, "block_size": 256}, "twice-default": {"twice": True}}
    payload = {name: {"model": str(directories.get(name, checkpoint))} | case for name, case in cases.items()}
    return drive("config_driver.py", payload, "--no-amx")  # without AMX vLLM switches more off


@pytest.mark.parametrize("case", REFUSED | SPOILT)
def test_refused_with_one_clear_error(outcomes, case):
    words = SPOILT[case] if case in SPOILT else REFUSED[case][1]
    outcome = outcomes[case]
    assert outcome["error"], f"accepted: {outcome}"
    assert outcome["is_value_error"]
    missing = [word for word in words if word not in outcome["error"]]
    assert not missing, outcome["error"]


def test_drafts_on_sm120_are_refused_by_name():
    speculative = SimpleNamespace(method="mtp", num_speculative_tokens=1)
    load = SimpleNamespace(load_format="dummy")
    model = SimpleNamespace(model="tiny", hf_config=config_json(DEMO))
    config = SimpleNamespace(speculative_config=speculative, model_config=model, load_config=load)
    with arch.override("sm120"):
        (problem,) = _check_speculation(config)
    assert problem == "--speculative-config is not available on sm120 (RTX PRO 6000); leave it out"
    with arch.override("sm90"):
        assert list(_check_speculation(config)) == []


def test_dspark_is_planned_for_the_v2_runner(tmp_path, drive):
    model = write_checkpoint(tmp_path / "tiny", replace(DEMO, dspark=TinyDSpark(target_layer_ids=(3, 4, 5))), "fp8")
    outcomes = drive("config_driver.py", {"dspark": {"model": str(model)} | DSPARK}, "--interpreted", **V2_RUNNER)
    assert outcomes["dspark"]["error"] is None, outcomes["dspark"]["error"]
    assert outcomes["dspark"]["rows"] == "fp8"


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(outcomes, case):
    outcome = outcomes[case]
    assert outcome["error"] is None, outcome["error"]
    assert outcome["block_size"] == 256
    assert outcome["prefix_caching"]
    assert outcome["chunked_prefill"]
    expected = ACCEPTED[case][1]
    assert {key: outcome[key] for key in expected} == expected


def test_think_max_is_announced_below_its_limit(outcomes):
    (note,) = outcomes["plain"]["notes"]
    assert "--max-model-len 393216" in note
    assert "it is 4096" in note


def test_another_model_is_left_alone(outcomes):
    outcome = outcomes["another-model"]
    assert outcome["error"] is None, outcome["error"]
    assert outcome["rows"] is None
    assert outcome["block_size"] != 256


def test_the_hook_runs_twice_and_256_survives(outcomes):
    for block_size in ("given", "default"):
        for hook in ("hook", "backend"):
            outcome = outcomes[f"twice-{block_size}"][hook]
            assert outcome["block_size"] == 256
            assert outcome["prefix_caching"]
            assert outcome["chunked_prefill"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"use_fp4_indexer_cache": True}, {"indexer_kv_dtype": "mxfp4"}),
        ({"use_fp4_indexer_cache": "True", "backend": "X"}, {"indexer_kv_dtype": "mxfp4", "backend": "X"}),
        ({"use_fp4_indexer_cache": False}, {}),
        ({"use_fp4_indexer_cache": True, "indexer_kv_dtype": "fp8"}, {"indexer_kv_dtype": "fp8"}),
        ({"indexer_kv_dtype": "fp8"}, {"indexer_kv_dtype": "fp8"}),
    ],
    ids=["true", "string-and-other-keys", "false", "explicit-new-name-wins", "nothing-old"],
)
def test_older_recipes_are_translated(old, new):
    assert json.loads(translate_attention_config(json.dumps(old))) == new


def test_what_is_not_json_is_left_to_the_parser():
    assert translate_attention_config("{nonsense") == "{nonsense"
