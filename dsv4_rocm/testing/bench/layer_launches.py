"""Counts what one decode step of one decoder layer launches, on a simulated GPU; run in a process of its own.

`python -m dsv4_rocm.testing.bench.layer_launches gfx942` prints {layer kind: {part: launches}}. The layer is the served
one, on the meta device. Counted are every torch operation that is no view, each launch of our ops (as their launchers
make them for one token), and for vLLM's modules the fixed numbers of `LIBRARY`.
"""

import inspect
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dsv4_rocm import arch
from dsv4_rocm.cache.addressing import TokenBatch
from dsv4_rocm.cache.layout import CacheKind
from dsv4_rocm.cache.specs import SERVED
from dsv4_rocm.kernels.indexer_query.op import IndexQuery
from dsv4_rocm.kernels.inv_rope_quant.op import SCALE_GROUP, GroupedFp8
from dsv4_rocm.kernels.selection import OPS, choose, implementations
from dsv4_rocm.model_spec import LayerKind
from dsv4_rocm.testing.bench.arguments import (
    FLASH_TP1,
    attention,
    compress,
    index_query,
    index_select,
    inverse,
    query_insert,
)
from dsv4_rocm.testing.bench.recorder import launches
from dsv4_rocm.testing.simulated_platform import simulate
from dsv4_rocm.testing.tiny_config import DEMO, config_json
from dsv4_rocm.testing.tiny_tokenizer import write_tokenizer

# Launches of vLLM's own modules on a GPU with AITER, read in the source. A quantized linear layer quantizes its input
# and multiplies. Fused experts take logits, top-k, sorting, quantization, the first product with its activation,
# quantization, and the second product with the sum over experts. mHC multiplies and does the rest, the norm included;
# where vLLM finds neither AITER nor TileLang it runs mHC in plain torch, some 290 launches a layer.
LIBRARY = {
    "fp8 linear": 2,
    "linear": 1,
    "RMSNorm": 1,
    "activation": 1,
    "fused experts": 7,
    "MHCPreOp": 2,
    "MHCFusedPostPreOp": 2,
    "MHCPostOp": 1,
}
NO_LAUNCH = (
    "empty",
    "prim.device",
    "detach",
    "_unsafe_view",
    "lift_fresh",
    "sym_",
    "new_empty",
    "alias",
    "is_same_size",
)
CONTEXT = 4096


def op_launches(name: str) -> dict[str, int]:
    """Launches of each of our ops for one decoded token of Flash, as the chosen implementations make them."""
    builders: dict[str, Callable[[], dict[str, Any]]] = {
        "qnorm_rope_insert": partial(query_insert, FLASH_TP1, 1),
        "compress_insert c4a": partial(compress, LayerKind.C4A, False),
        "compress_insert c128a": partial(compress, LayerKind.C128A, False),
        "compress_insert index": partial(compress, LayerKind.C4A, True),
        "indexer_query": partial(index_query, 1),
        "indexer_select": partial(index_select, 1, CONTEXT // 4),
        "sparse_attention swa": partial(attention, FLASH_TP1, LayerKind.SWA),
        "sparse_attention c4a": partial(attention, FLASH_TP1, LayerKind.C4A, entries=512),
        "sparse_attention c128a": partial(attention, FLASH_TP1, LayerKind.C128A, entries=64),
        "inv_rope_quant": partial(inverse, FLASH_TP1, 1),
    }
    found = {}
    for label, build in builders.items():
        function = choose(label.split()[0], arch.get(name), SERVED).chosen.load()
        found[label] = len(launches(name, partial(function, **build()), run=False))
    return found


def _results(op: str, arguments: dict[str, Any]) -> Any:
    """Tensors like those an op returns."""
    if op == "compress_insert":
        return None
    if op == "indexer_query":
        query, weights = arguments["query"], arguments["weights"]
        return IndexQuery(torch.empty_like(query, dtype=torch.uint8), torch.empty_like(weights))
    if op == "indexer_select":
        batch: TokenBatch = arguments["batch"]
        return torch.empty(batch.num_tokens, arguments["top_k"], dtype=torch.int32, device="meta")
    if op == "inv_rope_quant":
        values = torch.empty_like(arguments["output"], dtype=torch.uint8)
        values = values.view(values.shape[0], arguments["num_groups"], -1)
        return GroupedFp8(values, torch.empty_like(values[..., ::SCALE_GROUP], dtype=torch.float32))
    return torch.empty_like(arguments["query"])


class _Torch(TorchDispatchMode):
    """Counts torch operations that compute or copy, by the module that asks for them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts: Counter[str] = Counter()
        self.module = ["layer"]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function).removeprefix("aten.")
        if not function.is_view and not name.startswith(NO_LAUNCH):
            self.parts[f"{self.module[-1]}: torch"] += 1
        return function(*args, **(kwargs or {}))

    def follow(self, layer: nn.Module) -> None:
        """Know which child of the layer an operation belongs to, methods of hyper-connections included."""
        for name, child in layer.named_children():
            for method in ("forward", "before", "between", "after"):
                if hasattr(child, method):
                    setattr(child, method, partial(self._within, name, getattr(child, method)))

    def _within(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.module.append(name)
        try:
            return method(*args, **kwargs)
        finally:
            self.module.pop()


class _Stubs:
    """Stands in for what a simulation cannot run, and counts what it would launch."""

    def __init__(self, torch_operations: _Torch, kind: LayerKind, costs: dict[str, int]) -> None:
        self.mode, self.kind, self.costs = torch_operations, kind, costs

    def install(self, layer: Any) -> None:
        """Replace our ops and vLLM's modules in a layer by stubs."""
        from vllm.model_executor.layers import mhc
        from vllm.model_executor.layers.activation import SiluAndMul, SiluAndMulWithClamp
        from vllm.model_executor.layers.layernorm import RMSNorm
        from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod

        from dsv4_rocm.linear import Fp32OutputLinear
        from dsv4_rocm.model.hyper_connections import FusedHyperConnection

        MHC = (mhc.MHCPreOp, mhc.MHCPostOp, mhc.MHCFusedPostPreOp)
        for path, module in list(layer.named_modules()):
            part = path.split(".")[0]
            for attribute in [name for name in vars(module) if name.lstrip("_") in OPS]:
                setattr(module, attribute, partial(self.op, attribute.lstrip("_"), part))
            if isinstance(module, LinearBase):
                plain = isinstance(module.quant_method, UnquantizedLinearMethod)
                module.forward = partial(self.linear, "linear" if plain else "fp8 linear", part, module.weight.shape[0])
            elif isinstance(module, MHC):
                module.forward = partial(self.mhc, type(module).__name__, part)
            elif isinstance(module, Fp32OutputLinear):
                module.forward = partial(self.fp32_linear, part, module.weight.shape[0])  # type: ignore[method-assign]
            elif isinstance(module, RMSNorm):
                module.forward = partial(self.norm, part)
            elif isinstance(module, SiluAndMul | SiluAndMulWithClamp):
                module.forward = partial(self.activation, part)
            elif isinstance(module, FusedHyperConnection):
                module._norm_in_kernel = True
        layer.ffn.experts.fused = partial(self.experts, layer.ffn.shared_experts)

    def add(self, part: str, launched: int) -> None:
        self.mode.parts[part] += launched

    def op(self, op: str, part: str, *args: Any, **kwargs: Any) -> Any:
        signature = inspect.signature(implementations(op)[-1].load())
        arguments = signature.bind(*args, **kwargs).arguments
        label = op
        if op == "sparse_attention":
            label = f"{op} {self.kind.name.lower()}"
        elif op == "compress_insert":
            index = arguments["entries"].layout.kind is CacheKind.INDEX
            label = f"{op} {'index' if index else self.kind.name.lower()}"
        self.add(f"{part}: our ops", self.costs[label])
        return _results(op, arguments)

    def linear(self, what: str, part: str, width: int, x: Tensor) -> Tensor:
        self.add(f"{part}: vLLM linear layers", LIBRARY[what])
        return x.new_empty(*x.shape[:-1], width)

    def fp32_linear(self, part: str, width: int, x: Tensor) -> Tensor:
        self.add(f"{part}: torch", 1)  # on a GPU; elsewhere it widens its inputs
        return x.new_empty(*x.shape[:-1], width, dtype=torch.float32)

    def mhc(self, name: str, part: str, *args: Tensor, **_: Any) -> Any:
        self.add(f"{part}: vLLM mHC", LIBRARY[name])
        streams = args[0] if name == "MHCPreOp" else args[1]
        mixed = torch.empty_like(streams)
        if name == "MHCPostOp":
            return mixed
        tokens, count, _hidden = streams.shape
        post, comb = (streams.new_empty(tokens, count, size, dtype=torch.float32) for size in (1, count))
        before = post, comb, torch.empty_like(streams[:, 0])
        return before if name == "MHCPreOp" else (mixed, *before)

    def norm(self, part: str, x: Tensor) -> Tensor:
        self.add(f"{part}: vLLM norms", LIBRARY["RMSNorm"])
        return torch.empty_like(x)

    def activation(self, part: str, x: Tensor) -> Tensor:
        self.add(f"{part}: vLLM activation", LIBRARY["activation"])
        return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)

    def experts(self, shared: nn.Module, hidden_states: Tensor, **_: Any) -> Tensor:
        self.add("ffn: vLLM fused experts", LIBRARY["fused experts"])
        out: Tensor = shared(hidden_states)
        return hidden_states + out


def count_layer(layer: nn.Module, kind: LayerKind, costs: dict[str, int], config: Any, hidden: int) -> dict[str, int]:
    """Launches of one forward pass of a decoder layer (on the meta device) for one token, by part."""
    from vllm.forward_context import set_forward_context

    from dsv4_rocm.attention.backend import CacheModule
    from dsv4_rocm.attention.metadata import GroupMetadata

    counted = _Torch()
    _Stubs(counted, kind, costs).install(layer)
    counted.follow(layer)

    def numbers(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    batch = TokenBatch(numbers(1), numbers(2, dtype=torch.int32), numbers(1))
    group = GroupMetadata(batch, numbers(1, 64, dtype=torch.int32), numbers(1))
    step = {module.prefix: group for module in layer.modules() if isinstance(module, CacheModule)}
    streams = numbers(1, 4, hidden, dtype=torch.bfloat16)
    with set_forward_context(step, config), torch.no_grad():
        before = numbers(1)
        with counted:
            layer(streams, before)
    return dict(counted.parts)


def _engine_config(directory: Path) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    (directory / "config.json").write_text(json.dumps(config_json(DEMO, "fp8")))
    write_tokenizer(directory, DEMO.vocab_size)
    return EngineArgs(
        model=str(directory),
        load_format="dummy",
        max_model_len=CONTEXT,
        trust_remote_code=True,
        kv_cache_dtype="fp8",
        tokenizer_mode="deepseek_v4",
        enforce_eager=True,
    ).create_engine_config()


def _layers(name: str, directory: Path) -> dict[str, dict[str, int]]:
    simulate(name)
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    from dsv4_rocm.model.causal_lm import layer_context
    from dsv4_rocm.model.decoder_layer import DecoderLayer

    costs, found = op_launches(name), {}
    config = _engine_config(directory)
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{directory}/rendezvous", 0, "gloo")
        initialize_model_parallel(1)
        torch.set_default_dtype(torch.bfloat16)
        context = layer_context(config)
        # vLLM has no fused experts for a model this small; they are not run, but counted.
        experts = patch("dsv4_rocm.model.moe.FusedExperts", lambda *_: nn.Module())
        for kind in LayerKind:
            which = [layer for layer in context.spec.layers if layer.kind is kind][-1]
            with torch.device("meta"), experts:
                layer = DecoderLayer(context, which, f"model.layers.{which.index}")
            found[kind.name.lower()] = count_layer(layer, kind, costs, config, context.spec.hidden_size)
    return found


def main() -> None:
    """Print the counts of the architecture named on the command line."""
    stdout, sys.stdout = sys.stdout, sys.stderr  # vLLM logs to the standard output
    with tempfile.TemporaryDirectory() as folder:
        json.dump(_layers(sys.argv[1], Path(folder)), stdout)


if __name__ == "__main__":
    main()
