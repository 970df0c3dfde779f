"""ModelSpec: everything the model, the cache and the planner need from config.json, read once and checked."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

HEAD_DIM = 512
ROPE_DIM = 64
INDEX_HEAD_DIM = 128
SUPPORTED_RATIOS = (0, 4, 128)


class LayerKind(Enum):
    """What a layer attends to beside its window; the value is the compression ratio (tokens per entry)."""

    SWA = 0
    C4A = 4
    C128A = 128

    @property
    def ratio(self) -> int:
        return self.value

    @property
    def overlap(self) -> int:
        """Groups pooled into one entry: c4a pools the previous group too."""
        return 2 if self is LayerKind.C4A else 1


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer."""

    index: int
    kind: LayerKind
    hash_routed: bool


@dataclass(frozen=True, slots=True)
class DSparkSpec:
    """What config.json says of DSpark draft stages. The noise token's id is vLLM's business.

    Attributes:
        block_size: tokens that a stage was trained to draft at once.
        target_layers: decoder layers whose streams, averaged and projected, are the draft's context.
        markov_rank: width of the Markov head.
        stages: number of draft layers.
    """

    block_size: int
    target_layers: tuple[int, ...]
    markov_rank: int
    stages: int


@dataclass(frozen=True, slots=True)
class YarnSpec:
    """YaRN parameters of the layers that compress."""

    factor: float
    original_max_position: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A DeepSeek-V4 text model. Names follow config.json; shapes are those of docs/model-spec.md."""

    vocab_size: int
    hidden_size: int
    num_heads: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    index_heads: int
    index_topk: int
    num_experts: int
    experts_per_token: int
    expert_width: int
    routed_scaling_factor: float
    swiglu_limit: float | None
    norm_eps: float
    hc_mult: int
    hc_eps: float
    hc_sinkhorn_iters: int
    rope_theta: float
    compress_rope_theta: float
    yarn: YarnSpec
    max_position: int
    expert_dtype: str
    layers: tuple[LayerSpec, ...]
    num_draft_layers: int
    dspark: DSparkSpec | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.o_groups:
            raise ValueError(
                f"config.json: num_attention_heads ({self.num_heads}) must be a multiple of o_groups ({self.o_groups})"
            )
        if self.expert_dtype not in ("fp4", "fp8"):
            raise ValueError(f"config.json: expert_dtype must be fp4 or fp8, got {self.expert_dtype!r}")

    @property
    def heads_per_group(self) -> int:
        return self.num_heads // self.o_groups

    @property
    def draft_layers(self) -> tuple[LayerSpec, ...]:
        """Draft layers, numbered after the decoder layers: windows only, routed by bias."""
        first = len(self.layers)
        return tuple(LayerSpec(first + stage, LayerKind.SWA, False) for stage in range(self.num_draft_layers))

    def count(self, kind: LayerKind) -> int:
        """Number of decoder layers of one kind."""
        return sum(layer.kind is kind for layer in self.layers)

    @classmethod
    def from_directory(cls, directory: str | Path) -> "ModelSpec":
        """Read `config.json` of a checkpoint directory."""
        return cls.from_config(json.loads((Path(directory) / "config.json").read_text()))

    @classmethod
    def from_config(cls, config: Any) -> "ModelSpec":
        """Read DeepSeek's form, or transformers', which folds ratios into layer types and nests rope as main/compress.

        Args:
            config: a mapping (parsed config.json) or a configuration object with the same names.

        Raises:
            ValueError: naming the key of config.json that is missing or has a value this package does not serve.
        """
        return _from_reader(_Reader(config))


class _Reader:
    """Reads keys from a mapping or attributes from an object, and names the key when it is missing."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def get(self, key: str, default: Any = None) -> Any:
        config = self._config
        value = config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)
        return default if value is None else value

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ValueError(f"config.json has no {key!r}: not a DeepSeek-V4 checkpoint, or an incomplete one")
        return value

    def need_equal(self, key: str, expected: int) -> None:
        value = self.need(key)
        if value != expected:
            raise ValueError(f"config.json: {key} must be {expected} for DeepSeek-V4, got {value}")


def _from_reader(config: _Reader) -> ModelSpec:
    config.need_equal("head_dim", HEAD_DIM)
    config.need_equal("qk_rope_head_dim", ROPE_DIM)
    config.need_equal("index_head_dim", INDEX_HEAD_DIM)
    if config.get("vision_n_layers", 0):
        raise ValueError("config.json: vision_n_layers is set; the vision variants of DeepSeek-V4 are not supported")
    if not config.get("norm_topk_prob", True) or config.get("scoring_func", "sqrtsoftplus") != "sqrtsoftplus":
        raise ValueError("config.json: only scoring_func sqrtsoftplus with norm_topk_prob true is supported")
    num_layers = config.need("num_hidden_layers")
    ratios, num_hash, num_draft = _layer_pattern(config, num_layers)
    dspark = _dspark(config)
    theta, compress_theta, yarn = _rope(config)
    layers = tuple(LayerSpec(i, LayerKind(ratio), i < num_hash) for i, ratio in enumerate(ratios))
    return ModelSpec(
        vocab_size=config.need("vocab_size"),
        hidden_size=config.need("hidden_size"),
        num_heads=config.need("num_attention_heads"),
        q_lora_rank=config.need("q_lora_rank"),
        o_groups=config.need("o_groups"),
        o_lora_rank=config.need("o_lora_rank"),
        window=config.need("sliding_window"),
        index_heads=config.need("index_n_heads"),
        index_topk=config.need("index_topk"),
        num_experts=config.need("n_routed_experts"),
        experts_per_token=config.need("num_experts_per_tok"),
        expert_width=config.need("moe_intermediate_size"),
        routed_scaling_factor=float(config.get("routed_scaling_factor", 1.0)),
        swiglu_limit=config.get("swiglu_limit"),
        norm_eps=float(config.need("rms_norm_eps")),
        hc_mult=config.need("hc_mult"),
        hc_eps=float(config.need("hc_eps")),
        hc_sinkhorn_iters=config.need("hc_sinkhorn_iters"),
        rope_theta=theta,
        compress_rope_theta=compress_theta,
        yarn=yarn,
        max_position=config.need("max_position_embeddings"),
        expert_dtype=config.get("expert_dtype", "fp4"),
        layers=layers,
        num_draft_layers=num_draft if dspark is None else dspark.stages,
        dspark=dspark,
    )


def _dspark(config: _Reader) -> DSparkSpec | None:
    """DSpark checkpoints still say num_nextn_predict_layers 1; `dspark_block_size` decides."""
    if config.get("dspark_block_size") is None:
        return None
    return DSparkSpec(
        block_size=config.need("dspark_block_size"),
        target_layers=tuple(config.need("dspark_target_layer_ids")),
        markov_rank=config.need("dspark_markov_rank"),
        stages=config.get("n_mtp_layers", 3),
    )


def _layer_pattern(config: _Reader, num_layers: int) -> tuple[list[int], int, int]:
    """Ratios of the decoder layers, number of hash-routed layers, number of draft layers."""
    ratios = config.get("compress_ratios")
    if ratios is None and config.get("layer_types") is not None:
        rates = config.get("compress_rates", {})
        ratios = [rates.get(layer_type, 0) for layer_type in config.need("layer_types")]
    if ratios is None:
        raise ValueError("config.json has no 'compress_ratios' (nor 'layer_types'): the kind of each layer is unknown")
    if len(ratios) < num_layers:
        raise ValueError(
            f"config.json: compress_ratios names {len(ratios)} layers, but num_hidden_layers is {num_layers}"
        )
    for i, ratio in enumerate(ratios):
        if ratio not in SUPPORTED_RATIOS:
            raise ValueError(f"config.json: compress_ratios[{i}] must be one of {SUPPORTED_RATIOS}, got {ratio}")
    num_hash = config.get("num_hash_layers")
    if num_hash is None:
        num_hash = list(config.get("mlp_layer_types", [])).count("hash_moe")
    drafts = max(len(ratios) - num_layers, config.get("num_nextn_predict_layers", 0))
    return list(ratios[:num_layers]), num_hash, drafts


def _rope(config: _Reader) -> tuple[float, float, YarnSpec]:
    """(theta of SWA layers, theta of compressing layers, YaRN) from any of the three forms in use."""
    parameters = config.get("rope_parameters", {})
    scaling = config.get("rope_scaling", {})
    nested = parameters.get("compress")
    if isinstance(nested, Mapping):
        yarn_source, theta = nested, parameters["main"].get("rope_theta")
        compress_theta = nested.get("rope_theta")
    else:
        yarn_source, theta, compress_theta = {**scaling, **parameters}, parameters.get("rope_theta"), None
    theta = theta or config.get("rope_theta", 10000.0)
    compress_theta = config.get("compress_rope_theta") or compress_theta or 160000.0
    if "factor" not in yarn_source:
        raise ValueError("config.json: rope_scaling (YaRN with factor, original_max_position_embeddings) is missing")
    yarn = YarnSpec(
        factor=float(yarn_source["factor"]),
        original_max_position=int(yarn_source["original_max_position_embeddings"]),
        beta_fast=float(yarn_source.get("beta_fast", 32)),
        beta_slow=float(yarn_source.get("beta_slow", 1)),
    )
    return float(theta), float(compress_theta), yarn


def _published(
    ratios: list[int],
    hidden: int,
    heads: int,
    q_lora: int,
    groups: int,
    experts: int,
    width: int,
    scale: float,
    topk: int,
) -> ModelSpec:
    layers = tuple(LayerSpec(i, LayerKind(ratio), i < 3) for i, ratio in enumerate(ratios))
    yarn = YarnSpec(factor=16.0, original_max_position=65536, beta_fast=32.0, beta_slow=1.0)
    return ModelSpec(
        vocab_size=129280,
        hidden_size=hidden,
        num_heads=heads,
        q_lora_rank=q_lora,
        o_groups=groups,
        o_lora_rank=1024,
        window=128,
        index_heads=64,
        index_topk=topk,
        num_experts=experts,
        experts_per_token=6,
        expert_width=width,
        routed_scaling_factor=scale,
        swiglu_limit=10.0,
        norm_eps=1e-6,
        hc_mult=4,
        hc_eps=1e-6,
        hc_sinkhorn_iters=20,
        rope_theta=1e4,
        compress_rope_theta=1.6e5,
        yarn=yarn,
        max_position=1_048_576,
        expert_dtype="fp4",
        layers=layers,
        num_draft_layers=1,
    )


FLASH = _published([0, 0] + [4, 128] * 20 + [4], 4096, 64, 1024, 8, 256, 2048, 1.5, 512)
PRO = _published([128, 128] + [4, 128] * 29 + [4], 7168, 128, 1536, 16, 384, 3072, 2.5, 1024)
