"""Loading: one name table, dequantization at load where the platform computes in plain torch, nothing left over."""

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import MergedColumnParallelLinear
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from dsv4_rocm.attention.context import LayerContext
from dsv4_rocm.checkpoint import skipped_reason
from dsv4_rocm.linear import JoinedFp32OutputLinear, rank_slice
from dsv4_rocm.model.moe import FusedMoE, HostMoE
from dsv4_rocm.number_formats import dequantize_fp8_blocks, dequantize_mxfp4

logger = logging.getLogger(f"vllm.{__name__}")  # below vLLM's logger, so that its settings hold

_RENAMED = {"head.weight": "lm_head.weight", "embed.weight": "model.embed_tokens.weight"}
_EXPERT = re.compile(r"layers\.(\d+)\.ffn\.experts\.(\d+)\.(w[123])\.(weight|scale)$")
_HYPER = re.compile(r"hc_(attn|ffn|head)_(fn|base|scale)$")
_FP8_DTYPES = (torch.float8_e4m3fn,)
_FP4_DTYPES = (torch.int8, torch.uint8)


def parameter_name(name: str, context: LayerContext) -> str:
    """Our parameter that a checkpoint tensor (of anything but a routed expert) goes to."""
    if name in _RENAMED:
        return _RENAMED[name]
    if name.endswith(".scale"):
        name = f"{name.removesuffix('.scale')}.weight_scale_inv"
    name = _HYPER.sub(r"hc_\1.\2", name)
    if context.dequantize_at_load:
        name = name.replace(".ffn.gate.weight", ".ffn.gate.projection.weight")
    else:
        name = name.replace(".ffn.gate.bias", ".ffn.gate.e_score_correction_bias")
    return f"model.{name}"


@dataclass(slots=True)
class Dequantizer:
    """Joins `.weight` and `.scale` of quantized tensors and yields plain weights; passes everything else through.

    Attributes:
        everything: dequantize all linears and experts; else only wo_a, which is used in the model's dtype everywhere.
        dtype: dtype of the plain weights.
    """

    everything: bool
    dtype: torch.dtype
    stored_bytes: int = 0
    plain_bytes: int = 0
    _pending: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def stream(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Weights by name, quantized pairs replaced by one plain weight.

        Raises:
            ValueError: a quantized weight without a scale, or a scale without a weight.
        """
        for name, tensor in weights:
            base, _, part = name.rpartition(".")
            if part not in ("weight", "scale") or not self._applies(base) or not _is_quantized(part, tensor):
                yield name, tensor
                continue
            pair = self._pending.setdefault(base, {})
            pair[part] = tensor
            if len(pair) == 2:
                yield f"{base}.weight", self._plain(**self._pending.pop(base))
        for base, pair in self._pending.items():
            (present,) = pair
            absent = "scale" if present == "weight" else "weight"
            raise ValueError(f"the checkpoint has {base}.{present} but no {base}.{absent}; download it again")

    def _applies(self, base: str) -> bool:
        return self.everything or base.endswith(".attn.wo_a")

    def _plain(self, weight: Tensor, scale: Tensor) -> Tensor:
        dequantize = dequantize_fp8_blocks if weight.dtype in _FP8_DTYPES else dequantize_mxfp4
        plain = dequantize(weight, scale).to(self.dtype)
        self.stored_bytes += weight.nbytes + scale.nbytes
        self.plain_bytes += plain.nbytes
        return plain


def _is_quantized(part: str, tensor: Tensor) -> bool:
    """A scale always belongs to a quantized weight; a weight tells by its dtype."""
    return part == "scale" or tensor.dtype in _FP8_DTYPES + _FP4_DTYPES


def load_weights(model: nn.Module, weights: Iterable[tuple[str, Tensor]], context: LayerContext) -> set[str]:
    """Load a checkpoint into the causal LM.

    Args:
        model: the module whose parameters carry the names of `parameter_name`.
        weights: checkpoint tensors by DeepSeek's names.
        context: what the layers were built from.

    Returns:
        Names of the loaded parameters.

    Raises:
        ValueError: naming a tensor that belongs to no parameter, or a parameter that no tensor filled.
    """
    skipped: list[str] = []
    kept = _without_skipped(weights, context, skipped)
    loaded = _load(model, kept, context, _layers_of_other_stages(model, context))
    if skipped:
        logger.info("dsv4_rocm: %d tensors left out (draft modules, biases of hash-routed layers)", len(skipped))
    return loaded


def load_draft_weights(model: nn.Module, weights: Iterable[tuple[str, Tensor]], context: LayerContext) -> set[str]:
    """Load the draft modules of a checkpoint, with the embedding and the head that they share with the target.

    Arguments, result and errors are those of `load_weights`; names in errors are numbered after the decoder layers.
    """
    return _load(model, draft_tensors(weights, len(context.spec.layers)), context, absent=set())


def draft_tensors(weights: Iterable[tuple[str, Tensor]], num_layers: int) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a draft model, `mtp.<stage>` renamed to the layer with that number after the decoder layers."""
    for name, tensor in weights:
        if name in _RENAMED:
            yield name, tensor
        elif name.startswith("mtp."):
            _, stage, rest = name.split(".", 2)
            yield f"layers.{num_layers + int(stage)}.{rest}", tensor


def _without_skipped(
    weights: Iterable[tuple[str, Tensor]], context: LayerContext, skipped: list[str]
) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in weights:
        if skipped_reason(name, context.spec) is None:
            yield name, tensor
        else:
            skipped.append(name)


def _load(model: nn.Module, weights: Iterable[tuple[str, Tensor]], context: LayerContext, absent: set[int]) -> set[str]:
    params = dict(model.named_parameters())
    shards = _shards(model)
    moes = {name: module for name, module in model.named_modules() if isinstance(module, HostMoE | FusedMoE)}
    loaded: set[str] = set()
    experts_loaded: set[tuple[str, int, str]] = set()
    dequantizer = Dequantizer(context.dequantize_at_load, torch.get_default_dtype())
    for name, tensor in dequantizer.stream(weights):
        if (expert := _EXPERT.match(name)) is not None:
            layer, number, which, part = expert.groups()
            prefix = f"model.layers.{layer}.ffn"
            if (prefix not in moes and int(layer) not in absent) or int(number) >= context.spec.num_experts:
                raise ValueError(f"tensor {name} of the checkpoint belongs to no part of DeepSeek-V4")
            if int(layer) not in absent:
                suffix = part if part == "weight" else _expert_scale_name(context)
                targets = moes[prefix].experts.load(int(number), which, suffix, tensor)
                loaded.update(f"{prefix}.experts.{target}" for target in targets)
                experts_loaded.add((prefix, int(number), which))
        else:
            target = parameter_name(name, context)
            if target in shards:
                shard = shards[target]
                loader: Any = params[shard.param].weight_loader  # type: ignore[attr-defined]
                loader(params[shard.param], rank_slice(tensor, 0) if shard.split else tensor, shard.number)
                loaded.add(target)
            elif target in params:
                loader = getattr(params[target], "weight_loader", default_weight_loader)
                loader(params[target], tensor)
                loaded.add(target)
            elif not _elsewhere(target, absent):
                raise ValueError(f"tensor {name} of the checkpoint belongs to no part of DeepSeek-V4")
    joined = {shard.param for shard in shards.values()}
    _report((params.keys() - joined | shards.keys()) - loaded, moes, experts_loaded, context)
    if dequantizer.stored_bytes:
        logger.info(
            "dsv4_rocm: quantized weights of %.2f GiB became %.2f GiB of %s",
            dequantizer.stored_bytes / 2**30,
            dequantizer.plain_bytes / 2**30,
            dequantizer.dtype,
        )
    return loaded - shards.keys() | joined


class _Shard(NamedTuple):
    """Where one matrix of a joined layer is held, and whether this rank takes only its share."""

    param: str
    number: int
    split: bool


def _shards(model: nn.Module) -> dict[str, _Shard]:
    """Every matrix that is held in a joined layer, by its own name; scales too."""
    found = {}
    for name, module in model.named_modules():
        if not isinstance(module, MergedColumnParallelLinear | JoinedFp32OutputLinear):
            continue
        for param, _ in module.named_parameters():
            for number, part in enumerate(module.parts):
                shard = _Shard(f"{name}.{param}", number, part in module.split_parts)
                found[f"{name.rpartition('.')[0]}.{part}.{param}"] = shard
    return found


def _expert_scale_name(context: LayerContext) -> str:
    return "weight_scale" if context.spec.expert_dtype == "fp4" else "weight_scale_inv"


def _layers_of_other_stages(model: nn.Module, context: LayerContext) -> set[int]:
    inner: Any = model.get_submodule("model")
    return {layer.index for layer in context.spec.layers if not inner.start_layer <= layer.index < inner.end_layer}


def _elsewhere(target: str, absent: set[int]) -> bool:
    """Whether a parameter lives on another pipeline stage."""
    layer = re.match(r"model\.layers\.(\d+)\.", target)
    if layer is not None:
        return int(layer.group(1)) in absent
    ends = ("lm_head.", "model.embed_tokens.", "model.norm.", "model.hc_head.")
    return bool(absent) and target.startswith(ends)


def _report(
    empty: set[str],
    moes: dict[str, HostMoE | FusedMoE],
    experts_loaded: set[tuple[str, int, str]],
    context: LayerContext,
) -> None:
    if empty:
        raise ValueError(f"the checkpoint has no tensor for {', '.join(sorted(empty)[:5])}; download it again")
    for prefix in moes:
        for expert in range(context.spec.num_experts):
            for which in ("w1", "w2", "w3"):
                if (prefix, expert, which) not in experts_loaded:
                    raise ValueError(f"the checkpoint has no {prefix}.experts.{expert}.{which}; download it again")
