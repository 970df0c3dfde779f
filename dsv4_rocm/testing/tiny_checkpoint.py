"""Write and read tiny DeepSeek-V4 checkpoints in the real on-disk formats: tensor names, dtypes, shards, config."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dsv4_rocm.number_formats import (
    E4M3_MAX,
    dequantize_fp8_blocks,
    dequantize_mxfp4,
    e4m3_encode,
    quantize_fp8_blocks,
    quantize_mxfp4,
)
from dsv4_rocm.testing.tiny_config import (
    DEMO,
    FP8_BLOCK,
    ORACLE,
    WEIGHT_FORMATS,
    ConfigForm,
    TinyConfig,
    WeightFormat,
    config_json,
    read_config,
)
from dsv4_rocm.testing.tiny_tokenizer import check_vocabulary, write_tokenizer
from dsv4_rocm.testing.tiny_weights import Kind, draw_weights, make_drafts_agree, tensor_table

__all__ = [
    "DEMO",
    "ORACLE",
    "WEIGHT_FORMATS",
    "TinyConfig",
    "WeightFormat",
    "load_dequantized",
    "read_config",
    "write_checkpoint",
]

INDEX_NAME = "model.safetensors.index.json"


def write_checkpoint(
    directory: str | Path,
    config: TinyConfig,
    weights: WeightFormat = "float32",
    *,
    shards: int = 2,
    seed: int = 0,
    form: ConfigForm = "deepseek",
    drafts_agree: bool = False,
) -> Path:
    """Write a complete checkpoint: shards, index, config.json, generation_config.json and a tokenizer.

    Args:
        directory: made if it does not exist; files of the same names are replaced.
        config: the model, for example `ORACLE` or `DEMO`.
        weights: "fp8" is what DeepSeek-V4-Flash and -Pro ship (FP8 linears, FP4 experts, e8m0 scales), "fp8-experts"
            what -Base ships (FP8 experts too, float32 scales); "float32" and "bfloat16" are plain.
        shards: number of safetensors files.
        seed: of the random values; equal arguments give equal bytes.
        form: of config.json.
        drafts_agree: make the draft modules right about two times in three; random ones never are.

    Returns:
        The directory.

    Raises:
        ValueError: a size does not fit the quantization blocks, too small a vocabulary, more shards than tensors.
    """
    config.check_weight_format(weights)
    check_vocabulary(config.vocab_size)
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    values = draw_weights(config, seed)
    if drafts_agree:
        values = make_drafts_agree(config, values)
    _write_shards(target, encode_weights(config, values, weights), shards)
    _write_json(target / "config.json", config_json(config, weights, form))
    generation = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 1.0, "top_p": 1.0}
    _write_json(target / "generation_config.json", {"_from_model_config": True, **generation})
    write_tokenizer(target, config.vocab_size)
    return target


def encode_weights(config: TinyConfig, values: Mapping[str, Tensor], weights: WeightFormat) -> dict[str, Tensor]:
    """The tensors as stored: fp32 `values` by DeepSeek name -> stored tensors with their `.scale` companions."""
    stored: dict[str, Tensor] = {}
    for spec in tensor_table(config):
        value = values[spec.name]
        if spec.kind in (Kind.F32, Kind.I64) or weights == "float32":
            stored[spec.name] = value
        elif spec.kind is Kind.BF16 or weights == "bfloat16":
            stored[spec.name] = value.bfloat16()
        else:
            scale_name = f"{spec.name.removesuffix('.weight')}.scale"
            stored[spec.name], stored[scale_name] = _encoder(spec.kind, weights)(value)
    return stored


def load_dequantized(directory: str | Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint by DeepSeek name, dequantized to fp32; hash tables stay int64."""
    source = Path(directory)
    index = json.loads((source / INDEX_NAME).read_text())
    stored: dict[str, Tensor] = {}
    for file in sorted(set(index["weight_map"].values())):
        with safe_open(source / file, framework="pt") as shard:
            stored |= {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118 (not a mapping)
    values = {}
    for name, tensor in stored.items():
        scale = stored.get(f"{name.removesuffix('.weight')}.scale")
        if not name.endswith(".scale"):
            values[name] = _decode(tensor, scale)
    return values


def _encoder(kind: Kind, weights: WeightFormat) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    if weights == "fp8-experts":
        return _encode_fp8_float_scale
    return _encode_fp4 if kind is Kind.EXPERT else _encode_fp8


def _encode_fp8(value: Tensor) -> tuple[Tensor, Tensor]:
    weight, scale = quantize_fp8_blocks(value)
    return weight, scale.view(torch.float8_e8m0fnu)


def _encode_fp8_float_scale(value: Tensor) -> tuple[Tensor, Tensor]:
    rows, cols = (-(-size // FP8_BLOCK) for size in value.shape)
    padded = F.pad(value, (0, cols * FP8_BLOCK - value.shape[1], 0, rows * FP8_BLOCK - value.shape[0]))
    scale = padded.view(rows, FP8_BLOCK, cols, FP8_BLOCK).abs().amax((1, 3)) / E4M3_MAX  # [rows, cols]
    spread = scale.repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
    byte = e4m3_encode(value / spread[: value.shape[0], : value.shape[1]])
    return byte.view(torch.float8_e4m3fn), scale


def _encode_fp4(value: Tensor) -> tuple[Tensor, Tensor]:
    packed, scale = quantize_mxfp4(value)
    return packed.view(torch.int8), scale.view(torch.float8_e8m0fnu)


def _decode(tensor: Tensor, scale: Tensor | None) -> Tensor:
    if tensor.dtype == torch.int64:
        return tensor
    if scale is None:
        return tensor.float()
    return dequantize_mxfp4(tensor, scale) if tensor.dtype == torch.int8 else dequantize_fp8_blocks(tensor, scale)


def _write_shards(target: Path, tensors: Mapping[str, Tensor], shards: int) -> None:
    names = list(tensors)
    if not 1 <= shards <= len(names):
        raise ValueError(f"shards: must be between 1 and the {len(names)} tensors, got {shards}")
    weight_map: dict[str, str] = {}
    for number in range(shards):
        part = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        save_file({name: tensors[name].contiguous() for name in part}, target / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    _write_json(target / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
