"""What a checkpoint directory must hold, judged by its headers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dsv4_rocm.checkpoint import (
    INDEX_FILE,
    draft_linear_shapes,
    draft_plain_shapes,
    linear_shapes,
    plain_shapes,
    verify_directory,
    verify_draft,
)
from dsv4_rocm.model_spec import FLASH, PRO, DSparkSpec, ModelSpec
from dsv4_rocm.testing.tiny_checkpoint import write_checkpoint
from dsv4_rocm.testing.tiny_config import DEMO, TinyDSpark, read_config


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path, DEMO, weights="fp8")
    return tmp_path


def verify(directory: Path) -> object:
    return verify_directory(directory, ModelSpec.from_directory(directory))


def change(directory: Path, add: dict[str, torch.Tensor] | None = None, drop: str | None = None) -> None:
    """Rewrite the last shard with tensors added or dropped."""
    path = sorted(directory.glob("*.safetensors"))[-1]
    tensors = load_file(path) | (add or {})
    tensors.pop(drop, None)
    save_file(tensors, path)


def test_a_whole_checkpoint_passes(checkpoint: Path) -> None:
    files = verify(checkpoint)
    index = json.loads((checkpoint / INDEX_FILE).read_text())
    assert files.tensors == index["weight_map"]
    assert all(name.startswith("mtp.") for name in files.skipped)


FLASH_DSPARK = replace(FLASH, dspark=DSparkSpec(5, (40, 41, 42), 256, 3), num_draft_layers=3)


@pytest.mark.parametrize(("spec", "count"), [(FLASH, 69_187), (PRO, 145_116), (FLASH_DSPARK, 72_317)])
def test_tables_have_as_many_tensors_as_the_published_checkpoints(spec: ModelSpec, count: int) -> None:
    plain, linears = plain_shapes(spec) | draft_plain_shapes(spec), linear_shapes(spec) | draft_linear_shapes(spec)
    assert 2 * len(linears) + len(plain) == count


def test_drafts_are_checked_like_the_rest(checkpoint: Path) -> None:
    spec = ModelSpec.from_directory(checkpoint)
    verify_draft(checkpoint, spec)
    change(checkpoint, add={"mtp.0.enorm.weight": torch.zeros(3)})
    with pytest.raises(
        ValueError, match=r"mtp\.0\.enorm\.weight must be BF16 or .* \[256\] by config.json, got F32 \[3\]"
    ):
        verify_draft(checkpoint, spec)


def test_a_whole_dspark_checkpoint_passes(tmp_path: Path) -> None:
    dspark = TinyDSpark(target_layer_ids=(3, 4, 5), block_size=4, markov_rank=64)
    write_checkpoint(tmp_path, replace(DEMO, dspark=dspark), weights="fp8", drafts_agree=False)
    spec = ModelSpec.from_directory(tmp_path)
    assert spec.dspark == DSparkSpec(4, (3, 4, 5), 64, 3)
    assert [layer.index for layer in spec.draft_layers] == [6, 7, 8]
    assert read_config(tmp_path).dspark == dspark
    verify(tmp_path)
    verify_draft(tmp_path, spec)


def test_a_checkpoint_without_drafts_names_the_file(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, replace(DEMO, num_nextn_predict_layers=0))
    with pytest.raises(ValueError, match=f"{INDEX_FILE} has no draft weights: no tensor is called mtp"):
        verify_draft(tmp_path, replace(ModelSpec.from_directory(tmp_path), num_draft_layers=1))


def test_biases_of_hash_layers_are_skipped_and_listed(checkpoint: Path) -> None:
    names = [f"layers.{layer}.ffn.gate.bias" for layer in range(3)]
    change(checkpoint, add={name: torch.zeros(8) for name in names})
    assert set(names) <= set(verify(checkpoint).skipped)


def test_a_truncated_shard_is_named(checkpoint: Path) -> None:
    shard = sorted(checkpoint.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(ValueError, match=rf"{shard.name} is truncated: \d+ bytes where its header asks for \d+"):
        verify(checkpoint)
    shard.write_bytes(shard.read_bytes()[:50])
    with pytest.raises(ValueError, match="end inside its header"):
        verify(checkpoint)


def test_a_missing_shard_is_named(checkpoint: Path) -> None:
    shard = sorted(checkpoint.glob("*.safetensors"))[0]
    shard.unlink()
    with pytest.raises(ValueError, match=f"{shard.name} is named in {INDEX_FILE} but does not exist"):
        verify(checkpoint)


def test_an_unknown_tensor_is_named(checkpoint: Path) -> None:
    change(checkpoint, add={"layers.0.attn.wq_c.weight": torch.zeros(1)})
    with pytest.raises(
        ValueError, match=r"safetensors: no part of DeepSeek-V4 is called layers\.0\.attn\.wq_c\.weight"
    ):
        verify(checkpoint)


def test_a_missing_tensor_is_named(checkpoint: Path) -> None:
    last = sorted(checkpoint.glob("*.safetensors"))[-1]
    name = next(name for name in load_file(last) if name.startswith("layers.") and name.endswith(".attn_norm.weight"))
    change(checkpoint, drop=name)
    with pytest.raises(ValueError, match=f"lacks {name}"):
        verify(checkpoint)


def test_a_wrong_shape_is_named(checkpoint: Path) -> None:
    change(checkpoint, add={"norm.weight": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"norm\.weight must be BF16 or .* \[256\] by config.json, got F32 \[3\]"):
        verify(checkpoint)


def test_a_wrong_scale_is_named(checkpoint: Path) -> None:
    change(checkpoint, add={"layers.0.attn.wkv.scale": torch.zeros(4, 4)})
    with pytest.raises(
        ValueError, match=r"layers\.0\.attn\.wkv\.scale must be .* \[4, 2\] by config.json, got F32 \[4, 4\]"
    ):
        verify(checkpoint)
