"""The tensors of a DeepSeek-V4 checkpoint: names, shapes and kinds as a table, and random values for them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from dsv4_rocm.testing.tiny_config import TinyConfig, TinyDSpark

QUIET = 1 / 8  # a power of two: what is stored in FP8 or FP4 rounds the same
SHARED = 0.5
MARKOV_WEIGHT = 2
LOUD = 8
_HEAD = ("norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale")
_LOUD = re.compile(r"\.attn\.wo_b\.weight$|\.ffn\..*\.w2\.weight$")


class Kind(Enum):
    """How the real checkpoints store a tensor."""

    FP8 = "FP8 blocks with a .scale companion"
    EXPERT = "FP4 groups (FP8 blocks in -Base) with a .scale companion"
    BF16 = "bfloat16"
    F32 = "float32"
    I64 = "int64"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: its DeepSeek name, shape, stored kind, and the normal distribution its values come from."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    std: float
    mean: float = 0.0


def tensor_table(config: TinyConfig) -> Iterator[TensorSpec]:
    """Every tensor of the checkpoint, scales apart, in file order (model-spec section 2)."""
    yield _bf16("embed.weight", config.vocab_size, config.hidden_size, std=1.0)
    yield _bf16("head.weight", config.vocab_size, config.hidden_size)
    yield _norm("norm", config.hidden_size)
    yield from _head_mix("", config)
    for layer, ratio in enumerate(config.compress_ratios):
        yield from _decoder_layer(f"layers.{layer}", config, ratio, hashed=layer < config.num_hash_layers)
    for stage in range(config.num_draft_layers):
        yield from _decoder_layer(f"mtp.{stage}", config, ratio=0, hashed=False)
        if config.dspark is None:
            yield from _mtp_parts(f"mtp.{stage}", config)
    if config.dspark is not None:
        yield from _dspark_parts(config, config.dspark)


def draw_weights(config: TinyConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random values by DeepSeek name: fp32, and int64 for the hash tables; the same seed gives the same bits.

    Norms, sinks, biases and position encodings are spread as far as in a trained model, so that an implementation that
    forgets one of them moves the logits.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for spec in tensor_table(config):
        if spec.kind is Kind.I64:
            order = torch.rand(config.vocab_size, config.n_routed_experts, generator=generator).argsort(-1)
            weights[spec.name] = order[:, : config.num_experts_per_tok].contiguous()
        else:
            weights[spec.name] = torch.randn(spec.shape, generator=generator) * spec.std + spec.mean
    return weights


def make_drafts_agree(config: TinyConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a model whose draft is often right: the draft of random weights never is.

    Attention and experts add little to the streams, so that the next token depends mostly, but not only, on the last
    one. A serial draft takes that token's embedding as it is and reads it with the target's own head; see
    `_agreeing_dspark` for the other kind.
    """
    changed = {name: value * QUIET if _LOUD.search(name) else value for name, value in weights.items()}
    if config.dspark is not None:
        return changed | _agreeing_dspark(config, config.dspark, weights)
    for stage in range(config.num_nextn_predict_layers):
        prefix = f"mtp.{stage}"
        changed[f"{prefix}.e_proj.weight"] = torch.eye(config.hidden_size)
        changed[f"{prefix}.h_proj.weight"] = weights[f"{prefix}.h_proj.weight"] * QUIET
        changed[f"{prefix}.enorm.weight"] = torch.ones(config.hidden_size)
        changed |= {f"{prefix}.{name}": weights[name] for name in _HEAD}
    return changed


def _agreeing_dspark(config: TinyConfig, dspark: TinyDSpark, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A Markov head that knows what follows a token, and stages whose attention rests on the noise tokens' rows.

    All embeddings share a component, by which every query asks for channel 0; only the row of the noise token answers,
    and wo_a ignores that channel. So a token that sees the noise behind it adds nothing, and one that does not, as in a
    causal window, adds what it finds in the context.
    """
    hidden, last = config.hidden_size, f"mtp.{config.num_draft_layers - 1}"
    embedding = weights["embed.weight"] + SHARED
    changed = {"embed.weight": embedding} | {f"{last}.{name}": weights[name] for name in _HEAD}
    unit = embedding * torch.rsqrt(embedding.square().mean(-1, keepdim=True))
    changed[f"{last}.markov_head.markov_w1.weight"] = unit * weights["norm.weight"]
    changed[f"{last}.markov_head.markov_w2.weight"] = weights["head.weight"] * MARKOV_WEIGHT
    for stage in range(config.num_draft_layers):
        prefix = f"mtp.{stage}.attn"
        parts = {name: weights[f"{prefix}.{name}.weight"].clone() for name in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b")}
        noise = unit[dspark.noise_token_id] * weights[f"{prefix}_norm.weight"]
        noise = noise / noise.norm()
        parts["wq_a"][0] = hidden**-0.5
        parts["wq_b"][:: config.head_dim] = 0
        parts["wq_b"][:: config.head_dim, 0] = 4
        parts["wkv"] -= torch.outer(parts["wkv"] @ noise, noise)
        parts["wkv"][0] = 4 * noise
        parts["wo_a"][:, :: config.head_dim] = 0
        parts["wo_b"] *= LOUD
        changed |= {f"{prefix}.{name}.weight": value for name, value in parts.items()}
    return changed


def _matrix(kind: Kind, name: str, rows: int, cols: int, std: float | None = None) -> TensorSpec:
    return TensorSpec(name, (rows, cols), kind, cols**-0.5 if std is None else std)


def _fp8(name: str, rows: int, cols: int) -> TensorSpec:
    return _matrix(Kind.FP8, f"{name}.weight", rows, cols)


def _bf16(name: str, rows: int, cols: int, std: float | None = None) -> TensorSpec:
    return _matrix(Kind.BF16, name, rows, cols, std)


def _norm(name: str, size: int) -> TensorSpec:
    return TensorSpec(f"{name}.weight", (size,), Kind.BF16, 0.2, 1.0)


def _f32(name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> TensorSpec:
    return TensorSpec(name, shape, Kind.F32, std, mean)


def _head_mix(prefix: str, config: TinyConfig) -> Iterator[TensorSpec]:
    streams, width = config.hc_mult, config.hc_mult * config.hidden_size
    yield _f32(f"{prefix}hc_head_fn", (streams, width), width**-0.5)
    yield _f32(f"{prefix}hc_head_base", (streams,), 0.3)
    yield _f32(f"{prefix}hc_head_scale", (1,), 0.2, 1.0)


def _sublayer_mix(prefix: str, config: TinyConfig) -> Iterator[TensorSpec]:
    outputs, width = config.hc_mult * (config.hc_mult + 2), config.hc_mult * config.hidden_size
    yield _f32(f"{prefix}_fn", (outputs, width), 2 * width**-0.5)
    yield _f32(f"{prefix}_base", (outputs,), 0.5)
    yield _f32(f"{prefix}_scale", (3,), 0.3, 1.0)


def _decoder_layer(prefix: str, config: TinyConfig, ratio: int, hashed: bool) -> Iterator[TensorSpec]:
    for sublayer in ("attn", "ffn"):
        yield from _sublayer_mix(f"{prefix}.hc_{sublayer}", config)
        yield _norm(f"{prefix}.{sublayer}_norm", config.hidden_size)
    yield from _attention(f"{prefix}.attn", config, ratio)
    yield from _moe(f"{prefix}.ffn", config, hashed)


def _attention(prefix: str, config: TinyConfig, ratio: int) -> Iterator[TensorSpec]:
    query_width = config.num_attention_heads * config.head_dim
    latent = config.o_groups * config.o_lora_rank
    yield _f32(f"{prefix}.attn_sink", (config.num_attention_heads,), 1.0)
    yield _fp8(f"{prefix}.wq_a", config.q_lora_rank, config.hidden_size)
    yield _norm(f"{prefix}.q_norm", config.q_lora_rank)
    yield _fp8(f"{prefix}.wq_b", query_width, config.q_lora_rank)
    yield _fp8(f"{prefix}.wkv", config.head_dim, config.hidden_size)
    yield _norm(f"{prefix}.kv_norm", config.head_dim)
    yield _fp8(f"{prefix}.wo_a", latent, query_width // config.o_groups)
    yield _fp8(f"{prefix}.wo_b", config.hidden_size, latent)
    if ratio:
        yield from _compressor(f"{prefix}.compressor", config, ratio, config.head_dim)
    if ratio == 4:
        indexer = f"{prefix}.indexer"
        yield _fp8(f"{indexer}.wq_b", config.index_n_heads * config.index_head_dim, config.q_lora_rank)
        yield _bf16(f"{indexer}.weights_proj.weight", config.index_n_heads, config.hidden_size)
        yield from _compressor(f"{indexer}.compressor", config, ratio, config.index_head_dim)


def _compressor(prefix: str, config: TinyConfig, ratio: int, width: int) -> Iterator[TensorSpec]:
    channels = 2 * width if ratio == 4 else width
    yield _f32(f"{prefix}.ape", (ratio, channels), 0.7)
    yield _bf16(f"{prefix}.wkv.weight", channels, config.hidden_size)
    yield _bf16(f"{prefix}.wgate.weight", channels, config.hidden_size, std=2 * config.hidden_size**-0.5)
    yield _norm(f"{prefix}.norm", width)


def _moe(prefix: str, config: TinyConfig, hashed: bool) -> Iterator[TensorSpec]:
    hidden, inner, experts = config.hidden_size, config.moe_intermediate_size, config.n_routed_experts
    yield _bf16(f"{prefix}.gate.weight", experts, hidden, std=2 * hidden**-0.5)
    if hashed:
        yield TensorSpec(f"{prefix}.gate.tid2eid", (config.vocab_size, config.num_experts_per_tok), Kind.I64, 0.0)
    else:
        yield _f32(f"{prefix}.gate.bias", (experts,), 0.5)
    for expert in range(experts):
        for name, rows, cols in (("w1", inner, hidden), ("w2", hidden, inner), ("w3", inner, hidden)):
            yield _matrix(Kind.EXPERT, f"{prefix}.experts.{expert}.{name}.weight", rows, cols)
    for name, rows, cols in (("w1", inner, hidden), ("w2", hidden, inner), ("w3", inner, hidden)):
        yield _fp8(f"{prefix}.shared_experts.{name}", rows, cols)


def _mtp_parts(prefix: str, config: TinyConfig) -> Iterator[TensorSpec]:
    for name in ("e_proj", "h_proj"):
        yield _fp8(f"{prefix}.{name}", config.hidden_size, config.hidden_size)
    for name in ("enorm", "hnorm", "norm"):
        yield _norm(f"{prefix}.{name}", config.hidden_size)
    yield from _head_mix(f"{prefix}.", config)


def _dspark_parts(config: TinyConfig, dspark: TinyDSpark) -> Iterator[TensorSpec]:
    last, hidden, rank = f"mtp.{config.num_draft_layers - 1}", config.hidden_size, dspark.markov_rank
    yield _fp8("mtp.0.main_proj", hidden, len(dspark.target_layer_ids) * hidden)
    yield _norm("mtp.0.main_norm", hidden)
    yield _norm(f"{last}.norm", hidden)
    yield from _head_mix(f"{last}.", config)
    yield _bf16(f"{last}.markov_head.markov_w1.weight", config.vocab_size, rank, std=1.0)
    yield _bf16(f"{last}.markov_head.markov_w2.weight", config.vocab_size, rank)
    yield _bf16(f"{last}.confidence_head.proj.weight", 1, hidden + rank)
