"""Tiny DeepSeek-V4 configurations: real head sizes and layer kinds, everything else small; both config.json forms."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from dsv4_rocm.model_spec import ModelSpec

WeightFormat = Literal["float32", "bfloat16", "fp8", "fp8-experts"]
WEIGHT_FORMATS: tuple[WeightFormat, ...] = ("float32", "bfloat16", "fp8", "fp8-experts")
ConfigForm = Literal["deepseek", "transformers"]

FP8_BLOCK = 128
LAYER_TYPES = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
# The same key in config.json, in both forms.
SHARED_FIELDS = """
vocab_size hidden_size num_attention_heads head_dim q_lora_rank o_groups o_lora_rank sliding_window index_n_heads
index_head_dim index_topk moe_intermediate_size n_routed_experts num_experts_per_tok routed_scaling_factor
swiglu_limit rms_norm_eps hc_mult hc_sinkhorn_iters hc_eps rope_theta compress_rope_theta max_position_embeddings
num_nextn_predict_layers
"""


@dataclass(frozen=True, slots=True)
class TinyDSpark:
    """DSpark draft stages in place of the serial MTP ones; field names are those of config.json without `dspark_`."""

    target_layer_ids: tuple[int, ...]
    block_size: int = 5
    noise_token_id: int = 7
    markov_rank: int = 256


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """A DeepSeek-V4 model by its sizes; field names are those of config.json.

    `compress_ratios` has one entry per decoder layer (0, 4 or 128); the entries of the MTP layers, always 0, are
    added when config.json is written. `yarn_original` is YaRN's original_max_position_embeddings.
    """

    compress_ratios: tuple[int, ...]
    vocab_size: int = 2048
    hidden_size: int = 256
    num_attention_heads: int = 4
    head_dim: int = 512
    qk_rope_head_dim: int = 64
    q_lora_rank: int = 128
    o_groups: int = 2
    o_lora_rank: int = 128
    sliding_window: int = 128
    index_n_heads: int = 16
    index_head_dim: int = 128
    index_topk: int = 32
    moe_intermediate_size: int = 128
    n_routed_experts: int = 8
    num_experts_per_tok: int = 3
    num_hash_layers: int = 2
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 0.6  # the real 10 would never bite on random weights
    rms_norm_eps: float = 1e-6
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    yarn_factor: float = 16.0
    yarn_original: int = 4096
    yarn_beta_fast: int = 32
    yarn_beta_slow: int = 1
    max_position_embeddings: int = 65536
    num_nextn_predict_layers: int = 1
    dspark: TinyDSpark | None = None
    n_mtp_layers: int = 3  # with dspark only

    def __post_init__(self) -> None:
        if not self.compress_ratios or set(self.compress_ratios) - set(LAYER_TYPES):
            raise ValueError(f"layers: each compress ratio must be 0, 4 or 128, got {list(self.compress_ratios)}")
        if not 0 < self.num_experts_per_tok <= self.n_routed_experts:
            raise ValueError(
                f"experts: must be at least the {self.num_experts_per_tok} a token uses, got {self.n_routed_experts}"
            )
        if not 0 <= self.num_hash_layers <= self.num_hidden_layers:
            raise ValueError(
                f"hash layers: must be between 0 and the {self.num_hidden_layers} layers, got {self.num_hash_layers}"
            )
        if self.num_attention_heads % self.o_groups:
            raise ValueError(f"heads: must be a multiple of {self.o_groups} output groups: {self.num_attention_heads}")
        if self.index_topk < 1:
            raise ValueError(f"index top-k: must be at least 1, got {self.index_topk}")

    @property
    def num_hidden_layers(self) -> int:
        return len(self.compress_ratios)

    @property
    def num_draft_layers(self) -> int:
        """Layers below `mtp.*`; DSpark checkpoints say num_nextn_predict_layers 1 whatever they hold."""
        return self.num_nextn_predict_layers if self.dspark is None else self.n_mtp_layers

    def check_weight_format(self, weights: WeightFormat) -> None:
        """Raise ValueError where a size does not fit the quantization blocks of `weights`."""
        if weights not in WEIGHT_FORMATS:
            raise ValueError(f"weights: must be one of {', '.join(WEIGHT_FORMATS)}, got {weights}")
        if weights in ("fp8", "fp8-experts"):
            for name in ("hidden_size", "q_lora_rank", "o_lora_rank", "moe_intermediate_size"):
                if getattr(self, name) % FP8_BLOCK:
                    raise ValueError(f"{name}: must be a multiple of {FP8_BLOCK} for FP8, got {getattr(self, name)}")


ORACLE = TinyConfig(compress_ratios=(0, 4, 128, 4, 128, 0), o_lora_rank=64, moe_intermediate_size=64)
DEMO = TinyConfig(compress_ratios=(0, 0, 4, 128, 4, 128), num_hash_layers=3)

ORACLE_DSPARK = replace(ORACLE, dspark=TinyDSpark(target_layer_ids=(3, 4, 5)))


def sizes_of(spec: ModelSpec) -> TinyConfig:
    """The sizes of a published model, to make its config.json from."""
    return TinyConfig(
        compress_ratios=tuple(layer.kind.ratio for layer in spec.layers),
        num_hash_layers=sum(layer.hash_routed for layer in spec.layers),
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        num_attention_heads=spec.num_heads,
        q_lora_rank=spec.q_lora_rank,
        o_groups=spec.o_groups,
        o_lora_rank=spec.o_lora_rank,
        index_n_heads=spec.index_heads,
        index_topk=spec.index_topk,
        moe_intermediate_size=spec.expert_width,
        n_routed_experts=spec.num_experts,
        num_experts_per_tok=spec.experts_per_token,
        routed_scaling_factor=spec.routed_scaling_factor,
        max_position_embeddings=spec.max_position,
        yarn_original=spec.yarn.original_max_position,
    )


def config_json(config: TinyConfig, weights: WeightFormat = "float32", form: ConfigForm = "deepseek") -> dict[str, Any]:
    """The content of config.json.

    Args:
        config: the model.
        weights: decides `torch_dtype`, `expert_dtype` and `quantization_config`.
        form: "deepseek" is what the checkpoints ship; "transformers" is what DeepseekV4Config writes back, without
            compress_ratios, num_hash_layers and qk_rope_head_dim, and with one rope entry per kind of layer.
    """
    config.check_weight_format(weights)
    result: dict[str, Any] = {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": 1,
        "scoring_func": "sqrtsoftplus",
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "torch_dtype": "float32" if weights == "float32" else "bfloat16",
        "use_cache": True,
    }
    result |= {name: getattr(config, name) for name in SHARED_FIELDS.split()}
    if config.dspark is not None:
        result |= {f"dspark_{name}": value for name, value in asdict(config.dspark).items()}
        result["n_mtp_layers"] = config.n_mtp_layers
    result |= _deepseek_fields(config) if form == "deepseek" else _transformers_fields(config)
    if weights in ("fp8", "fp8-experts"):
        result["expert_dtype"] = "fp4" if weights == "fp8" else "fp8"
        result["quantization_config"] = {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
        }
    return result


def _yarn(config: TinyConfig) -> dict[str, Any]:
    return {
        "type": "yarn",
        "factor": config.yarn_factor,
        "original_max_position_embeddings": config.yarn_original,
        "beta_fast": config.yarn_beta_fast,
        "beta_slow": config.yarn_beta_slow,
    }


def _deepseek_fields(config: TinyConfig) -> dict[str, Any]:
    return {
        "compress_ratios": [*config.compress_ratios, *[0] * config.num_draft_layers],
        "num_hash_layers": config.num_hash_layers,
        "qk_rope_head_dim": config.qk_rope_head_dim,
        "rope_scaling": _yarn(config),
    }


def _transformers_fields(config: TinyConfig) -> dict[str, Any]:
    layers, hashed = config.num_hidden_layers, config.num_hash_layers
    partial = config.qk_rope_head_dim / config.head_dim
    main = {"rope_type": "default", "rope_theta": config.rope_theta, "partial_rotary_factor": partial}
    compress = {
        **_yarn(config),
        "rope_type": "yarn",
        "rope_theta": config.compress_rope_theta,
        "partial_rotary_factor": partial,
        "attention_factor": 1.0,
    }
    return {
        "layer_types": [LAYER_TYPES[ratio] for ratio in config.compress_ratios],
        "compress_rates": {LAYER_TYPES[4]: 4, LAYER_TYPES[128]: 128},
        "mlp_layer_types": ["hash_moe"] * hashed + ["moe"] * (layers - hashed),
        "partial_rotary_factor": partial,
        "rope_parameters": {"main": main, "compress": compress},
    }


def read_config(directory: Path) -> TinyConfig:
    """The TinyConfig of a checkpoint whose config.json is in the DeepSeek form; raises ValueError on the other form."""
    stored: Mapping[str, Any] = json.loads((directory / "config.json").read_text())
    if "compress_ratios" not in stored:
        raise ValueError(f"{directory / 'config.json'}: expected the DeepSeek form, found no compress_ratios")
    yarn = stored["rope_scaling"]
    values = {f.name: stored[f.name] for f in fields(TinyConfig) if f.name in stored}
    values |= {
        "compress_ratios": tuple(stored["compress_ratios"][: stored["num_hidden_layers"]]),
        "yarn_factor": yarn["factor"],
        "yarn_original": yarn["original_max_position_embeddings"],
        "yarn_beta_fast": yarn["beta_fast"],
        "yarn_beta_slow": yarn["beta_slow"],
    }
    if "dspark_block_size" in stored:
        dspark = {f.name: stored[f"dspark_{f.name}"] for f in fields(TinyDSpark)}
        values["dspark"] = TinyDSpark(**dspark | {"target_layer_ids": tuple(dspark["target_layer_ids"])})
    return TinyConfig(**values)
