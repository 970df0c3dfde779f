"""Tiny checkpoints hold what the real ones hold: names, dtypes, counts, scales, and the same bytes every time."""

import json
import re
from dataclasses import replace
from hashlib import sha256

import pytest
import torch
from safetensors import safe_open

from dsv4_rocm.testing import transformers_oracle
from dsv4_rocm.testing.reference_model import ReferenceModel
from dsv4_rocm.testing.tiny_checkpoint import DEMO, ORACLE, load_dequantized, read_config, write_checkpoint
from dsv4_rocm.testing.tiny_config import WEIGHT_FORMATS, config_json
from dsv4_rocm.testing.tiny_weights import Kind, draw_weights, tensor_table

F8, E8M0, BF16, F32, I8 = "F8_E4M3", "F8_E8M0", "BF16", "F32", "I8"

# Written from the headers of the published files, not from the table under test.
PUBLISHED = {  # name: dtypes of (weight, scale) in fp8, then in fp8-experts
    r"(embed|head|norm)\.weight": (BF16,),
    r".*\.(attn_norm|ffn_norm|q_norm|kv_norm|enorm|hnorm|norm)\.weight": (BF16,),
    r"(.*\.)?hc_(head|attn|ffn)_(fn|base|scale)": (F32,),
    r".*\.attn\.attn_sink": (F32,),
    r".*\.compressor\.ape": (F32,),
    r".*\.compressor\.(wkv|wgate)\.weight": (BF16,),
    r".*\.indexer\.weights_proj\.weight": (BF16,),
    r".*\.gate\.weight": (BF16,),
    r".*\.gate\.bias": (F32,),
    r".*\.gate\.tid2eid": ("I64",),
    r".*\.attn\.(indexer\.wq_b|wq_a|wq_b|wkv|wo_a|wo_b)\.(weight|scale)": (F8, E8M0, F8, F32),
    r".*\.shared_experts\.w[123]\.(weight|scale)": (F8, E8M0, F8, F32),
    r"mtp\.\d+\.[eh]_proj\.(weight|scale)": (F8, E8M0, F8, F32),
    r".*\.ffn\.experts\.\d+\.w[123]\.(weight|scale)": (I8, E8M0, F8, F32),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiny")
    return {kind: write_checkpoint(root / kind, DEMO, kind) for kind in WEIGHT_FORMATS}


def headers(directory):
    """name -> (dtype, shape), from the shards the index names."""
    weight_map = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    found = {}
    for file in sorted(set(weight_map.values())):
        with safe_open(directory / file, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 (not a mapping)
                assert weight_map[name] == file
                part = shard.get_slice(name)
                found[name] = part.get_dtype(), tuple(part.get_shape())
    assert set(found) == set(weight_map)
    return found


def hashes(directory):
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("kind", ["fp8", "fp8-experts"])
def test_dtypes_are_the_published_ones(written, kind):
    for name, (dtype, _) in headers(written[kind]).items():
        (published,) = [types for pattern, types in PUBLISHED.items() if re.fullmatch(pattern, name)]
        types = published if len(published) == 1 else published[:2] if kind == "fp8" else published[2:]
        assert dtype == types[name.endswith(".scale")], name


def test_plain_formats_have_no_scales(written):
    for kind, dtypes in (("float32", {F32, "I64"}), ("bfloat16", {F32, BF16, "I64"})):
        found = headers(written[kind])
        assert {dtype for dtype, _ in found.values()} == dtypes
        assert not [name for name in found if name.endswith(".scale")]


def test_shapes(written):
    found = headers(written["fp8"])
    assert found["layers.2.attn.wq_b.weight"][1] == (2048, 128)
    assert found["layers.2.attn.wq_b.scale"][1] == (16, 1)
    assert found["layers.2.attn.compressor.ape"][1] == (4, 1024)  # two halves of 512
    assert found["layers.3.attn.compressor.ape"][1] == (128, 512)
    assert found["layers.2.attn.indexer.compressor.wkv.weight"][1] == (256, 256)
    assert found["layers.4.ffn.experts.7.w1.weight"][1] == (128, 128)  # [128, 256] packed in pairs
    assert found["layers.4.ffn.experts.7.w1.scale"][1] == (128, 8)
    assert found["layers.0.ffn.gate.tid2eid"][1] == (2048, 3)
    assert "layers.3.ffn.gate.tid2eid" not in found
    assert "layers.2.ffn.gate.bias" not in found


COUNTS = {  # the counts of the published shard headers
    "flash-preview": ((0, 0, *(4, 128) * 20, 4), 256, 69_187),
    "pro": ((128, 128, *(4, 128) * 29, 4), 384, 145_116),
}


@pytest.mark.parametrize(("ratios", "experts", "count"), COUNTS.values(), ids=COUNTS.keys())
def test_tensor_count_is_the_published_one(ratios, experts, count):
    config = replace(DEMO, compress_ratios=ratios, n_routed_experts=experts)
    kinds = [spec.kind for spec in tensor_table(config)]
    assert len(kinds) + kinds.count(Kind.FP8) + kinds.count(Kind.EXPERT) == count


def fp8_spacing(value, scale):
    """Largest rounding error of e4m3 (3 mantissa bits, smallest step 2^-9) under a scale."""
    return torch.maximum(value.abs() * 2**-4, scale * 2**-10)


def fp4_spacing(value, scale):
    ratio = value.abs() / scale
    return scale * torch.where(ratio < 2, 0.25, torch.where(ratio < 4, 0.5, 1.0))


def block_scale(value, rows, cols):
    """Power-of-two scale of every rows x cols block of a matrix, spread over the block."""
    peak = value.unflatten(0, (-1, rows)).unflatten(2, (-1, cols)).abs().amax((1, 3))
    scale = torch.exp2(torch.ceil(torch.log2(peak / (6 if rows == 1 else 448))))
    return scale.repeat_interleave(rows, 0).repeat_interleave(cols, 1)


def test_fp8_round_trip_is_within_half_a_step(written):
    drawn, read = draw_weights(DEMO), load_dequantized(written["fp8"])
    assert set(drawn) == set(read)
    for spec in tensor_table(DEMO):
        value, error = drawn[spec.name], (drawn[spec.name] - read[spec.name]).abs()
        if spec.kind is Kind.FP8:
            assert (error <= fp8_spacing(value, block_scale(value, 128, 128))).all(), spec.name
        elif spec.kind is Kind.EXPERT:
            assert (error <= fp4_spacing(value, block_scale(value, 1, 32))).all(), spec.name
        elif spec.kind is Kind.BF16:
            assert torch.equal(read[spec.name], value.bfloat16().float()), spec.name
        else:
            assert torch.equal(read[spec.name], value), spec.name


def test_base_round_trip_uses_float_scales(written):
    drawn, read = draw_weights(DEMO), load_dequantized(written["fp8-experts"])
    name = "layers.4.ffn.experts.0.w1"
    peak = drawn[f"{name}.weight"].unflatten(1, (-1, 128)).abs().amax((0, 2), keepdim=True) / 448
    error = (drawn[f"{name}.weight"] - read[f"{name}.weight"]).abs().unflatten(1, (-1, 128))
    assert (error <= fp8_spacing(drawn[f"{name}.weight"].unflatten(1, (-1, 128)), peak) * (1 + 1e-6)).all()
    with safe_open(written["fp8-experts"] / "model-00002-of-00002.safetensors", framework="pt") as shard:
        mantissa, _ = torch.frexp(shard.get_tensor(f"{name}.scale"))
    assert (mantissa != 0.5).all()  # a loader that keeps only the exponent would be caught


def test_float32_round_trip_is_exact(written):
    drawn, read = draw_weights(DEMO), load_dequantized(written["float32"])
    assert all(torch.equal(drawn[name], read[name]) for name in drawn)


def test_bytes_depend_on_the_seed_alone(tmp_path):
    small = replace(DEMO, compress_ratios=(0, 4), num_hash_layers=1)
    first = hashes(write_checkpoint(tmp_path / "a", small, "fp8", seed=5))
    assert hashes(write_checkpoint(tmp_path / "b", small, "fp8", seed=5)) == first
    other = hashes(write_checkpoint(tmp_path / "c", small, "fp8", seed=6))
    assert {name for name in first if first[name] != other[name]} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }


def test_shards_and_total_size(tmp_path):
    small = replace(DEMO, compress_ratios=(0,), num_hash_layers=1)
    directory = write_checkpoint(tmp_path, small, "fp8", shards=5)
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == [f"model-{n:05d}-of-00005.safetensors" for n in range(1, 6)]
    on_disk = sum((directory / file).stat().st_size for file in set(index["weight_map"].values()))
    assert 0 < on_disk - index["metadata"]["total_size"] < 100_000  # the headers


def test_config_reads_back(written):
    for directory in written.values():
        assert read_config(directory) == DEMO
    fp8 = json.loads((written["fp8"] / "config.json").read_text())
    assert fp8["compress_ratios"] == [0, 0, 4, 128, 4, 128, 0]  # one more for the MTP layer
    assert fp8["expert_dtype"] == "fp4"
    assert fp8["quantization_config"]["weight_block_size"] == [128, 128]
    assert json.loads((written["fp8-experts"] / "config.json").read_text())["expert_dtype"] == "fp8"


def test_both_config_forms_mean_the_same_to_transformers():
    from transformers import DeepseekV4Config

    deepseek, own = (DeepseekV4Config(**config_json(ORACLE, form=form)) for form in ("deepseek", "transformers"))
    assert deepseek.to_dict() == own.to_dict()
    assert not hasattr(own, "compress_ratios")


@pytest.mark.parametrize("form", ["deepseek", "transformers"])
def test_transformers_loads_the_directory(tmp_path, oracle, expected, ids, form):
    """Its own loader knows DeepSeek's names: nothing missing, and the logits of the oracle fed by hand."""
    from transformers import DeepseekV4ForCausalLM

    directory = write_checkpoint(tmp_path, ORACLE, "float32", form=form)
    model, info = DeepseekV4ForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert (transformers_oracle.logits(model.eval(), ids) - expected).abs().max() <= 2e-5


REFUSED = {
    "ratio": ({"compress_ratios": (0, 8)}, "each compress ratio must be 0, 4 or 128"),
    "experts": ({"n_routed_experts": 2}, "at least the 3 a token uses, got 2"),
    "hash layers": ({"num_hash_layers": 7}, "between 0 and the 6 layers, got 7"),
    "index top-k": ({"index_topk": 0}, "index top-k: must be at least 1, got 0"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_impossible_config_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(DEMO, **change)


def test_size_outside_the_blocks_is_refused(tmp_path):
    with pytest.raises(ValueError, match="o_lora_rank: must be a multiple of 128 for FP8, got 64"):
        write_checkpoint(tmp_path, ORACLE, "fp8")
    assert not list(tmp_path.iterdir())


def accepted(directory, tokens):
    """Share of the greedy answer's tokens that the draft guessed, by the reference model."""
    model = ReferenceModel.from_checkpoint(directory)
    cache, ids, streams = model.new_cache(), list(range(100, 140)), []
    while len(ids) < 40 + tokens:
        start = sum(map(len, streams))
        streams.append(model.streams(torch.tensor(ids[start:]), cache, start))
        ids.append(int(model.head(streams[-1][-1:]).argmax()))
    drafts = model.head(model.draft(torch.cat(streams), torch.tensor(ids[1:])), "mtp.0").argmax(-1)
    return (drafts[39:-1] == torch.tensor(ids[41:])).float().mean().item()


def test_agreeing_drafts_are_accepted_and_rejected(tmp_path):
    assert 0.3 <= accepted(write_checkpoint(tmp_path / "agreeing", DEMO, "fp8", drafts_agree=True), 60) <= 0.9
    assert accepted(write_checkpoint(tmp_path / "random", ORACLE), 12) == 0
