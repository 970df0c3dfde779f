"""Dequantization at load, tensor by tensor, in every format on disk."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dsv4_rocm.model.weights import Dequantizer
from dsv4_rocm.testing.tiny_checkpoint import load_dequantized, write_checkpoint
from dsv4_rocm.testing.tiny_config import DEMO


def stored(directory: Path) -> list[tuple[str, torch.Tensor]]:
    return [item for path in sorted(directory.glob("*.safetensors")) for item in load_file(path).items()]


@pytest.mark.parametrize("weights", ["fp8", "fp8-experts", "bfloat16"])
def test_every_tensor_comes_out_plain(tmp_path: Path, weights: str) -> None:
    write_checkpoint(tmp_path, DEMO, weights=weights)
    plain = dict(Dequantizer(everything=True, dtype=torch.float32).stream(stored(tmp_path)))
    expected = load_dequantized(tmp_path)
    assert plain.keys() == expected.keys()
    for name, tensor in plain.items():
        assert torch.equal(tensor.to(expected[name].dtype), expected[name]), name


def test_on_a_gpu_only_wo_a_is_dequantized(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, DEMO, weights="fp8")
    before = dict(stored(tmp_path))
    after = dict(Dequantizer(everything=False, dtype=torch.bfloat16).stream(before.items()))
    changed = {name for name in before if name not in after or after[name] is not before[name]}
    assert changed == {name for name in before if ".attn.wo_a." in name}


@pytest.mark.parametrize(("dropped", "kept"), [("scale", "weight"), ("weight", "scale")])
def test_half_a_pair_is_named(tmp_path: Path, dropped: str, kept: str) -> None:
    write_checkpoint(tmp_path, DEMO, weights="fp8")
    name = "layers.1.attn.wq_b"
    weights = [(key, tensor) for key, tensor in stored(tmp_path) if key != f"{name}.{dropped}"]
    with pytest.raises(ValueError, match=f"has {name}.{kept} but no {name}.{dropped}"):
        dict(Dequantizer(everything=True, dtype=torch.float32).stream(weights))
