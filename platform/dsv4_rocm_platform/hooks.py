"""What our platforms add to vLLM's: the serve plan, for DeepSeek-V4 only."""

from typing import Any

from vllm.platforms.interface import Platform

from dsv4_rocm_platform.serve_plan import planned, translate_old_flags


class Dsv4Hooks(Platform):
    """Mixin in front of a vLLM platform class; other models see that class alone."""

    @classmethod
    def pre_register_and_update(cls, parser: Any = None) -> None:
        super().pre_register_and_update(parser)
        if parser is not None:
            translate_old_flags(parser)

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        with planned(vllm_config):
            super().check_and_update_config(vllm_config)

    @classmethod
    def register_custom_kv_cache_specs(cls, vllm_config: Any) -> None:
        super().register_custom_kv_cache_specs(vllm_config)
        from dsv4_rocm.cache import managers  # vLLM is not ready for it when this module is imported

        managers.register()

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: Any) -> None:
        with planned(vllm_config) as plan:
            if plan is None:
                super().update_block_size_for_backend(vllm_config)
