"""Checkpoint files: which tensors a model has, and whether a directory holds them whole. Reads headers only."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from dsv4_rocm.model_spec import LayerKind, ModelSpec

INDEX_FILE = "model.safetensors.index.json"
_MAX_LISTED = 5


def quantized_linears(spec: ModelSpec) -> set[str]:
    """Names (without `.weight`) of the linears that a quantized checkpoint stores with a `.scale`."""
    names = set()
    for layer in spec.layers:
        prefix = f"layers.{layer.index}"
        names |= {f"{prefix}.attn.{name}" for name in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b")}
        if layer.kind is LayerKind.C4A:
            names.add(f"{prefix}.attn.indexer.wq_b")
        experts = [f"experts.{e}" for e in range(spec.num_experts)] + ["shared_experts"]
        names |= {f"{prefix}.ffn.{expert}.{w}" for expert in experts for w in ("w1", "w2", "w3")}
    return names


def plain_tensors(spec: ModelSpec) -> set[str]:
    """Names of the tensors that are never quantized."""
    names = {"embed.weight", "head.weight", "norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale"}
    for layer in spec.layers:
        prefix = f"layers.{layer.index}"
        names |= {f"{prefix}.hc_{sub}_{part}" for sub in ("attn", "ffn") for part in ("fn", "base", "scale")}
        names |= {f"{prefix}.attn_norm.weight", f"{prefix}.ffn_norm.weight", f"{prefix}.ffn.gate.weight"}
        names |= {f"{prefix}.attn.{name}" for name in ("q_norm.weight", "kv_norm.weight", "attn_sink")}
        names.add(f"{prefix}.ffn.gate.{'tid2eid' if layer.hash_routed else 'bias'}")
        compressors = [] if layer.kind is LayerKind.SWA else ["compressor"]
        if layer.kind is LayerKind.C4A:
            compressors.append("indexer.compressor")
            names.add(f"{prefix}.attn.indexer.weights_proj.weight")
        for compressor in compressors:
            parts = ("ape", "wkv.weight", "wgate.weight", "norm.weight")
            names |= {f"{prefix}.attn.{compressor}.{part}" for part in parts}
    return names


def skipped_reason(name: str, spec: ModelSpec) -> str | None:
    """Why the main model leaves a tensor out, or None when it has to load it."""
    if name.startswith("mtp."):
        return "draft module, loaded by the draft model"
    parts = name.split(".")
    if name.endswith(".ffn.gate.bias") and parts[0] == "layers" and spec.layers[int(parts[1])].hash_routed:
        return "bias of a hash-routed layer, which routes by token id"
    return None


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """What the headers of a checkpoint directory say.

    Attributes:
        tensors: file name by tensor name.
        skipped: tensors that the main model leaves out.
    """

    tensors: dict[str, str]
    skipped: tuple[str, ...]


def verify_directory(directory: str | Path, spec: ModelSpec) -> CheckpointFiles:
    """Check that every shard is complete and that the tensors are exactly those of the model.

    Raises:
        ValueError: naming the file or the tensors, and what to do.
    """
    directory = Path(directory)
    tensors: dict[str, str] = {}
    for path in _shards(directory):
        for name in _header(path):
            tensors[name] = path.name
    skipped = tuple(name for name in tensors if skipped_reason(name, spec) is not None)
    loaded = tensors.keys() - set(skipped)
    linears = quantized_linears(spec)
    required = plain_tensors(spec) | {f"{name}.weight" for name in linears}
    if missing := required - loaded:
        raise ValueError(f"{directory}: the checkpoint lacks {_listed(missing)}; download it again")
    if unknown := loaded - required - {f"{name}.scale" for name in linears}:
        example = min(unknown)
        raise ValueError(
            f"{directory / tensors[example]}: no part of DeepSeek-V4 is called {_listed(unknown)}; "
            "config.json and weights do not belong together, or the model is newer than this package"
        )
    return CheckpointFiles(tensors, skipped)


def _shards(directory: Path) -> list[Path]:
    index = directory / INDEX_FILE
    if not index.exists():
        found = sorted(directory.glob("*.safetensors"))
        if not found:
            raise ValueError(f"{directory}: there is no *.safetensors file; download the checkpoint again")
        return found
    names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    for name in names:
        if not (directory / name).exists():
            raise ValueError(f"{directory / name} is named in {INDEX_FILE} but does not exist; download it again")
    return [directory / name for name in names]


def _header(path: Path) -> list[str]:
    """Tensor names of a safetensors file, which must be as long as its header says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if 8 + length > size:
            raise ValueError(f"{path} is truncated: {size} bytes end inside its header; download it again")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    expected = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size != expected:
        raise ValueError(f"{path} is truncated: {size} bytes where its header asks for {expected}; download it again")
    return list(header)


def _listed(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:_MAX_LISTED])
    return shown if len(names) <= _MAX_LISTED else f"{shown} and {len(names) - _MAX_LISTED} more"
