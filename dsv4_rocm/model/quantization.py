"""The host's quantization method: weights are dequantized at load, so any dtype and any CPU will do."""

from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.platforms import current_platform

from dsv4_rocm.upstream import refuse

NAME = "dsv4_rocm_dequantized"
_STORED_AS = ("fp8", "deepseek_v4_fp8")


class DequantizedConfig(QuantizationConfig):
    """Takes the place of vLLM's FP8 methods for DeepSeek-V4 on the host; every layer is a plain one."""

    def get_name(self) -> str:
        return NAME

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "DequantizedConfig":
        return cls()

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: Any, user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """vLLM asks every method whether a checkpoint is its own; a draft's configuration is asked for by our name."""
        if getattr(hf_config, "model_type", None) != "deepseek_v4" and user_quant != NAME:
            return None
        if hf_quant_cfg.get("quant_method") not in _STORED_AS:
            return None
        if user_quant not in (None, NAME, *_STORED_AS):
            refuse(
                f"--quantization must be fp8 or left out for this checkpoint, which is stored in FP8, got {user_quant}"
            )
        return NAME

    def get_quant_method(self, layer: nn.Module, prefix: str) -> None:
        return None


def register() -> None:
    """Make the method known to vLLM, on the host only. Safe to call again."""
    if current_platform.is_cpu():
        register_quantization_config(NAME)(DequantizedConfig)
