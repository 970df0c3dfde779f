"""The independent oracle: transformers' DeepseekV4ForCausalLM in fp32, fed with weights in DeepSeek's names."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dsv4_rocm.testing.tiny_checkpoint import load_dequantized
from dsv4_rocm.testing.tiny_config import TinyConfig, config_json, read_config

ATTENTION_NAMES = {
    "wq_a.weight": "q_a_proj.weight",
    "q_norm.weight": "q_a_norm.weight",
    "wq_b.weight": "q_b_proj.weight",
    "wkv.weight": "kv_proj.weight",
    "kv_norm.weight": "kv_norm.weight",
    "wo_a.weight": "o_a_proj.weight",
    "wo_b.weight": "o_b_proj.weight",
    "attn_sink": "sinks",
}
COMPRESSOR_NAMES = {
    "ape": "position_bias",
    "wkv.weight": "kv_proj.weight",
    "wgate.weight": "gate_proj.weight",
    "norm.weight": "kv_norm.weight",
}
INDEXER_NAMES = {"wq_b.weight": "q_b_proj.weight", "weights_proj.weight": "scorer.weights_proj.weight"}
EXPERT_NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def build(config: TinyConfig, weights: Mapping[str, Tensor]) -> nn.Module:
    """transformers' model in fp32 with `weights` (fp32 by DeepSeek name; `mtp.*` is left out, it has no MTP).

    Raises:
        RuntimeError: a tensor is missing or left over, or a shape differs.
    """
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model: nn.Module = DeepseekV4ForCausalLM(DeepseekV4Config(**config_json(config), **eager))
    model = model.float().eval()
    state = dict(_renamed(config, weights))
    missing, unexpected = model.load_state_dict(state, strict=False)
    missing = [name for name in missing if "inv_freq" not in name]
    if missing or unexpected:
        raise RuntimeError(f"oracle weights: missing {missing}, unexpected {unexpected}")
    return model


def from_checkpoint(directory: str | Path) -> nn.Module:
    """`build` from a checkpoint in the DeepSeek form, quantized or not; the weights are dequantized to fp32."""
    source = Path(directory)
    return build(read_config(source), load_dequantized(source))


@torch.no_grad()
def logits(model: nn.Module, ids: Tensor | Sequence[int], chunks: Sequence[int] | None = None) -> Tensor:
    """Logits of every position of one sequence.

    Args:
        model: from `build`.
        ids: token ids [tokens].
        chunks: chunk lengths that sum to `tokens`: run in pieces over transformers' cache; None: one pass, no cache.

    Returns:
        fp32 [tokens, vocab].
    """
    tokens = torch.as_tensor(ids)[None]  # [1, tokens]
    if chunks is None:
        result: Tensor = model(tokens, use_cache=False).logits[0]
        return result
    from transformers import DynamicCache

    cache: Any = DynamicCache(config=model.config)
    pieces, start = [], 0
    for length in chunks:
        position = torch.arange(start, start + length)[None]
        piece = tokens[:, start : start + length]
        pieces.append(model(piece, past_key_values=cache, use_cache=True, position_ids=position).logits[0])
        start += length
    return torch.cat(pieces)


def log_probabilities(model: nn.Module, ids: Tensor | Sequence[int]) -> Tensor:
    """Log-softmax of `logits`: fp32 [tokens, vocab]; row t is the distribution of token t + 1."""
    return logits(model, ids).log_softmax(-1)


def _renamed(config: TinyConfig, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    yield "model.embed_tokens.weight", weights["embed.weight"]
    yield "lm_head.weight", weights["head.weight"]
    yield "model.norm.weight", weights["norm.weight"]
    for part in ("fn", "base", "scale"):
        yield f"model.hc_head.hc_{part}", weights[f"hc_head_{part}"]
    for layer, ratio in enumerate(config.compress_ratios):
        yield from _layer(config, weights, f"layers.{layer}", f"model.layers.{layer}", ratio)


def _layer(
    config: TinyConfig, weights: Mapping[str, Tensor], source: str, target: str, ratio: int
) -> Iterator[tuple[str, Tensor]]:
    yield f"{target}.input_layernorm.weight", weights[f"{source}.attn_norm.weight"]
    yield f"{target}.post_attention_layernorm.weight", weights[f"{source}.ffn_norm.weight"]
    for sublayer in ("attn", "ffn"):
        for part in ("fn", "base", "scale"):
            yield f"{target}.{sublayer}_hc.{part}", weights[f"{source}.hc_{sublayer}_{part}"]
    attention, self_attn = f"{source}.attn", f"{target}.self_attn"
    yield from _mapped(weights, attention, self_attn, ATTENTION_NAMES)
    if ratio:
        yield from _mapped(weights, f"{attention}.compressor", f"{self_attn}.compressor", COMPRESSOR_NAMES)
    if ratio == 4:
        indexer = f"{self_attn}.compressor.indexer"
        yield from _mapped(weights, f"{attention}.indexer.compressor", indexer, COMPRESSOR_NAMES)
        yield from _mapped(weights, f"{attention}.indexer", indexer, INDEXER_NAMES)
    yield from _moe(config, weights, f"{source}.ffn", f"{target}.mlp")


def _moe(config: TinyConfig, weights: Mapping[str, Tensor], source: str, target: str) -> Iterator[tuple[str, Tensor]]:
    yield f"{target}.gate.weight", weights[f"{source}.gate.weight"]
    if f"{source}.gate.tid2eid" in weights:
        yield f"{target}.gate.tid2eid", weights[f"{source}.gate.tid2eid"]
    else:
        yield f"{target}.gate.e_score_correction_bias", weights[f"{source}.gate.bias"]
    experts = [f"{source}.experts.{expert}" for expert in range(config.n_routed_experts)]
    gate_up = [torch.cat([weights[f"{expert}.w1.weight"], weights[f"{expert}.w3.weight"]]) for expert in experts]
    yield f"{target}.experts.gate_up_proj", torch.stack(gate_up)
    yield f"{target}.experts.down_proj", torch.stack([weights[f"{expert}.w2.weight"] for expert in experts])
    for name, renamed in EXPERT_NAMES.items():
        yield f"{target}.shared_experts.{renamed}.weight", weights[f"{source}.shared_experts.{name}.weight"]


def _mapped(
    weights: Mapping[str, Tensor], source: str, target: str, names: Mapping[str, str]
) -> Iterator[tuple[str, Tensor]]:
    for name, renamed in names.items():
        yield f"{target}.{renamed}", weights[f"{source}.{name}"]


def worst_difference(oracle: nn.Module, answer: dict[str, Any]) -> float:
    """Largest |log-probability - transformers'| of an engine's answer: its tokens, and the prompt where asked for."""
    expected = log_probabilities(oracle, answer["prompt"] + answer["tokens"])
    rows = list(enumerate(answer["prompt_logprobs"][1:]))
    rows += list(enumerate(answer["logprobs"], start=len(answer["prompt"]) - 1))
    worst = 0.0
    for position, row in rows:
        tokens = torch.tensor([int(token) for token in row])
        got = torch.tensor(list(row.values()))
        worst = max(worst, (got - expected[position, tokens]).abs().max().item())
    return worst
