"""Checkpoint files: which tensors a model has, and whether a directory holds them whole. Reads headers only."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from dsv4_rocm.model_spec import HEAD_DIM, INDEX_HEAD_DIM, LayerKind, LayerSpec, ModelSpec

INDEX_FILE = "model.safetensors.index.json"
DRAFT_PREFIX = "mtp."
FP8_BLOCK = 128
FP4_GROUP = 32
Shape = tuple[int, ...]
_PLAIN_DTYPES = ("BF16", "F32", "F16", "I64", "I32")
_FP8_DTYPES = ("F8_E4M3",)
_FP4_DTYPES = ("I8", "U8")
_SCALE_DTYPES = ("F8_E8M0", "U8", "F32")
_MAX_LISTED = 5


def linear_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Shape [out, in] of every linear that a quantized checkpoint stores with a `.scale`, by name without `.weight`."""
    shapes: dict[str, Shape] = {}
    for layer in spec.layers:
        shapes |= _layer_linears(f"layers.{layer.index}", layer, spec)
    return shapes


def plain_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Shapes of the tensors that are never quantized, by name."""
    hidden = spec.hidden_size
    shapes: dict[str, Shape] = {"embed.weight": (spec.vocab_size, hidden), "head.weight": (spec.vocab_size, hidden)}
    shapes |= {"norm.weight": (hidden,)} | _head_mix("", spec)
    for layer in spec.layers:
        shapes |= _layer_plain(f"layers.{layer.index}", layer, spec)
    return shapes


def draft_linear_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """`linear_shapes` of the draft modules, serial or DSpark."""
    hidden = spec.hidden_size
    shapes: dict[str, Shape] = {}
    for stage, layer in enumerate(spec.draft_layers):
        shapes |= _layer_linears(f"mtp.{stage}", layer, spec)
        if spec.dspark is None:
            shapes |= {f"mtp.{stage}.{name}": (hidden, hidden) for name in ("e_proj", "h_proj")}
    if spec.dspark is not None:
        shapes["mtp.0.main_proj"] = (hidden, len(spec.dspark.target_layers) * hidden)
    return shapes


def draft_plain_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """`plain_shapes` of the draft modules, serial or DSpark."""
    hidden = spec.hidden_size
    shapes: dict[str, Shape] = {}
    for stage, layer in enumerate(spec.draft_layers):
        shapes |= _layer_plain(f"mtp.{stage}", layer, spec)
        if spec.dspark is None:
            shapes |= {f"mtp.{stage}.{norm}.weight": (hidden,) for norm in ("enorm", "hnorm", "norm")}
            shapes |= _head_mix(f"mtp.{stage}.", spec)
    if spec.dspark is not None:
        last, rank = f"mtp.{spec.dspark.stages - 1}", spec.dspark.markov_rank
        shapes |= {"mtp.0.main_norm.weight": (hidden,), f"{last}.norm.weight": (hidden,)}
        shapes |= _head_mix(f"{last}.", spec)
        shapes |= {f"{last}.markov_head.markov_{part}.weight": (spec.vocab_size, rank) for part in ("w1", "w2")}
        shapes[f"{last}.confidence_head.proj.weight"] = (1, hidden + rank)
    return shapes


def _layer_linears(prefix: str, layer: LayerSpec, spec: ModelSpec) -> dict[str, Shape]:
    hidden = spec.hidden_size
    attention = {
        "wq_a": (spec.q_lora_rank, hidden),
        "wq_b": (spec.num_heads * HEAD_DIM, spec.q_lora_rank),
        "wkv": (HEAD_DIM, hidden),
        "wo_a": (spec.o_groups * spec.o_lora_rank, spec.heads_per_group * HEAD_DIM),
        "wo_b": (hidden, spec.o_groups * spec.o_lora_rank),
    }
    expert = {"w1": (spec.expert_width, hidden), "w2": (hidden, spec.expert_width), "w3": (spec.expert_width, hidden)}
    experts = [f"experts.{e}" for e in range(spec.num_experts)] + ["shared_experts"]
    shapes: dict[str, Shape] = {f"{prefix}.attn.{name}": shape for name, shape in attention.items()}
    if layer.kind is LayerKind.C4A:
        shapes[f"{prefix}.attn.indexer.wq_b"] = (spec.index_heads * INDEX_HEAD_DIM, spec.q_lora_rank)
    return shapes | {f"{prefix}.ffn.{which}.{name}": shape for which in experts for name, shape in expert.items()}


def _layer_plain(prefix: str, layer: LayerSpec, spec: ModelSpec) -> dict[str, Shape]:
    hidden, mixes = spec.hidden_size, (2 + spec.hc_mult) * spec.hc_mult
    shapes: dict[str, Shape] = {}
    for sub in ("attn", "ffn"):
        hyper = {"fn": (mixes, spec.hc_mult * hidden), "base": (mixes,), "scale": (3,)}
        shapes |= {f"{prefix}.hc_{sub}_{part}": shape for part, shape in hyper.items()}
        shapes[f"{prefix}.{sub}_norm.weight"] = (hidden,)
    shapes[f"{prefix}.ffn.gate.weight"] = (spec.num_experts, hidden)
    if layer.hash_routed:
        shapes[f"{prefix}.ffn.gate.tid2eid"] = (spec.vocab_size, spec.experts_per_token)
    else:
        shapes[f"{prefix}.ffn.gate.bias"] = (spec.num_experts,)
    norms = {"q_norm.weight": (spec.q_lora_rank,), "kv_norm.weight": (HEAD_DIM,), "attn_sink": (spec.num_heads,)}
    shapes |= {f"{prefix}.attn.{name}": shape for name, shape in norms.items()}
    if layer.kind is not LayerKind.SWA:
        shapes |= _compressor_shapes(f"{prefix}.attn.compressor", layer.kind, HEAD_DIM, hidden)
    if layer.kind is LayerKind.C4A:
        shapes[f"{prefix}.attn.indexer.weights_proj.weight"] = (spec.index_heads, hidden)
        shapes |= _compressor_shapes(f"{prefix}.attn.indexer.compressor", layer.kind, INDEX_HEAD_DIM, hidden)
    return shapes


def _head_mix(prefix: str, spec: ModelSpec) -> dict[str, Shape]:
    streams = spec.hc_mult * spec.hidden_size
    parts = {"fn": (spec.hc_mult, streams), "base": (spec.hc_mult,), "scale": (1,)}
    return {f"{prefix}hc_head_{part}": shape for part, shape in parts.items()}


def _compressor_shapes(prefix: str, kind: LayerKind, width: int, hidden: int) -> dict[str, Shape]:
    rows = kind.overlap * width
    parts = {"ape": (kind.ratio, rows), "wkv.weight": (rows, hidden), "wgate.weight": (rows, hidden)}
    return {f"{prefix}.{part}": shape for part, shape in parts.items()} | {f"{prefix}.norm.weight": (width,)}


def skipped_reason(name: str, spec: ModelSpec) -> str | None:
    """Why the main model leaves a tensor out, or None when it has to load it."""
    if name.startswith(DRAFT_PREFIX):
        return "draft module, loaded by the draft model"
    if name.endswith(".ffn.gate.bias"):
        layer = name.removeprefix("layers.").removesuffix(".ffn.gate.bias")
        if layer.isdigit() and int(layer) < len(spec.layers) and spec.layers[int(layer)].hash_routed:
            return "bias of a hash-routed layer, which routes by token id"
    return None


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as a header describes it."""

    file: Path
    dtype: str
    shape: Shape


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
    """Check that every shard is complete and that the tensors are those of the model, in names, shapes and dtypes.

    Raises:
        ValueError: naming the file or the tensors, and what to do.
    """
    directory = Path(directory)
    tensors = _all_tensors(directory)
    skipped = tuple(name for name in tensors if skipped_reason(name, spec) is not None)
    loaded = {name: stored for name, stored in tensors.items() if name not in set(skipped)}
    _verify_tensors(directory, loaded, plain_shapes(spec), linear_shapes(spec))
    return CheckpointFiles({name: stored.file.name for name, stored in tensors.items()}, skipped)


def verify_draft(directory: str | Path, spec: ModelSpec) -> None:
    """`verify_directory` for the draft modules, every one of whose tensors has to load.

    Raises:
        ValueError: naming the file or the tensors, and what to do.
    """
    directory = Path(directory)
    stored = {name: tensor for name, tensor in _all_tensors(directory).items() if name.startswith(DRAFT_PREFIX)}
    if not stored:
        where = INDEX_FILE if (directory / INDEX_FILE).exists() else "*.safetensors"
        raise ValueError(
            f"{directory / where} has no draft weights: no tensor is called {DRAFT_PREFIX}*; download them, or leave "
            "--speculative-config out"
        )
    _verify_tensors(directory, stored, draft_plain_shapes(spec), draft_linear_shapes(spec))


def _verify_tensors(
    directory: Path, stored: dict[str, Stored], plain: dict[str, Shape], linears: dict[str, Shape]
) -> None:
    required = plain.keys() | {f"{name}.weight" for name in linears}
    if missing := required - stored.keys():
        raise ValueError(f"{directory}: the checkpoint lacks {_listed(missing)}; download it again")
    if unknown := stored.keys() - required - {f"{name}.scale" for name in linears}:
        raise ValueError(
            f"{stored[min(unknown)].file}: no part of DeepSeek-V4 is called {_listed(unknown)}; "
            "config.json and weights do not belong together, or the model is newer than this package"
        )
    for name, shape in plain.items():
        _require(stored, name, _PLAIN_DTYPES, shape)
    for name, shape in linears.items():
        _verify_linear(stored, name, shape)


def _all_tensors(directory: Path) -> dict[str, Stored]:
    return {name: stored for path in _shards(directory) for name, stored in _header(path).items()}


def _verify_linear(tensors: dict[str, Stored], name: str, shape: Shape) -> None:
    """A linear is plain, FP8 in blocks of 128, or FP4 in groups of 32, two to a byte."""
    out, inner = shape
    dtype = tensors[f"{name}.weight"].dtype
    if dtype in _PLAIN_DTYPES:
        _require(tensors, f"{name}.weight", _PLAIN_DTYPES, shape)
        return
    packed = dtype in _FP4_DTYPES
    _require(tensors, f"{name}.weight", (*_FP8_DTYPES, *_FP4_DTYPES), (out, inner // 2) if packed else shape)
    scale = (out, inner // FP4_GROUP) if packed else (-(-out // FP8_BLOCK), -(-inner // FP8_BLOCK))
    if f"{name}.scale" not in tensors:
        raise ValueError(f"{tensors[f'{name}.weight'].file}: {name}.weight is {dtype} without {name}.scale")
    _require(tensors, f"{name}.scale", _SCALE_DTYPES, scale)


def _require(tensors: dict[str, Stored], name: str, dtypes: tuple[str, ...], shape: Shape) -> None:
    stored = tensors[name]
    if stored.shape != shape or stored.dtype not in dtypes:
        raise ValueError(
            f"{stored.file}: {name} must be {' or '.join(dtypes)} {list(shape)} by config.json, "
            f"got {stored.dtype} {list(stored.shape)}; config.json and weights do not belong together"
        )


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


def _header(path: Path) -> dict[str, Stored]:
    """Tensors of a safetensors file, which must be as long as its header says."""
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
    return {name: Stored(path, entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}


def _listed(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:_MAX_LISTED])
    return shown if len(names) <= _MAX_LISTED else f"{shown} and {len(names) - _MAX_LISTED} more"
