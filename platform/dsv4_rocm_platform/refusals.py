"""What a server for DeepSeek-V4 refuses at start: one check per subject, each problem with its fix."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dsv4_rocm import arch
from dsv4_rocm.cache.specs import encodings_of
from dsv4_rocm.checkpoint import verify_directory, verify_draft
from dsv4_rocm.kernels import selection
from dsv4_rocm.model_spec import ModelSpec

BLOCK_SIZE = 256
QUANTIZATIONS = (None, "fp8", "deepseek_v4_fp8", "dsv4_rocm_dequantized")  # the last: what the host makes of fp8
MAX_DRAFT_TOKENS = 7  # with the token before them, the 8 neighbours that share one read of the keys
SAFETENSORS_FORMATS = ("auto", "safetensors")


def _check_block_size(config: Any) -> Iterator[str]:
    cache = config.cache_config
    if cache.user_specified_block_size and cache.block_size != BLOCK_SIZE:
        yield (
            f"--block-size must be {BLOCK_SIZE} for DeepSeek-V4 (one block = 64 c4a or 2 c128a entries), "
            f"got {cache.block_size}; use --block-size {BLOCK_SIZE} or leave it out"
        )


def _check_checkpoint(config: Any) -> Iterator[str]:
    model = config.model_config
    try:
        spec = ModelSpec.from_config(model.hf_config)
    except ValueError as error:
        yield f"{model.model}: {error}"
        return
    if not Path(model.model).is_dir() or config.load_config.load_format not in SAFETENSORS_FORMATS:
        return
    try:
        verify_directory(model.model, spec)
    except (ValueError, OSError) as error:
        yield str(error)


def _check_tokenizer(config: Any) -> Iterator[str]:
    model = config.model_config
    directory = Path(model.tokenizer or model.model)
    if model.skip_tokenizer_init or not directory.is_dir():
        return
    absent = [name for name in ("tokenizer.json", "tokenizer_config.json") if not (directory / name).is_file()]
    if absent:
        yield (
            f"{directory} has no {' and no '.join(absent)}; copy it from the published checkpoint, "
            "name another directory with --tokenizer, or pass --skip-tokenizer-init to send token ids"
        )


def _check_quantization(config: Any) -> Iterator[str]:
    value = config.model_config.quantization
    stored = getattr(config.model_config.hf_config, "quantization_config", None) is not None
    if value not in QUANTIZATIONS:
        yield f"--quantization must be fp8 or left out for DeepSeek-V4 (config.json says how it is stored), got {value}"
    elif value is not None and not stored:
        yield f"--quantization {value} needs a checkpoint that is stored quantized, and this one is not; leave it out"


def _check_parallel(config: Any) -> Iterator[str]:
    parallel = config.parallel_config
    if parallel.enable_eplb:
        yield "--enable-eplb is not supported (experts are not moved while serving); leave it out"
    if parallel.decode_context_parallel_size > 1:
        size = parallel.decode_context_parallel_size
        yield f"--decode-context-parallel-size must be 1 for DeepSeek-V4 (every rank holds all entries), got {size}"
    if parallel.prefill_context_parallel_size > 1:
        size = parallel.prefill_context_parallel_size
        yield f"--prefill-context-parallel-size must be 1 for DeepSeek-V4, got {size}"
    if parallel.use_sequence_parallel_moe:
        yield (
            "sequence-parallel MoE (--enable-expert-parallel with tensor and data parallel size above 1) is not "
            f"supported, got tensor {parallel.tensor_parallel_size} x data {parallel.data_parallel_size}; "
            "set one of them to 1"
        )
    if parallel.enable_dbo:
        yield "--enable-dbo is not supported (the cache writers are not split into micro-batches); leave it out"
    if parallel.enable_hc_sp:
        yield "--enable-hc-sp is not supported (residual streams are not split over ranks); leave it out"
    ranks = parallel.tensor_parallel_size * parallel.data_parallel_size
    stored = getattr(config.model_config.hf_config, "quantization_config", None) is not None
    plain = not stored or arch.current() is arch.HOST
    if parallel.enable_expert_parallel and ranks > 1 and plain:
        yield (
            "--enable-expert-parallel is not supported without a GPU or without quantized weights (experts are split "
            f"by width there), got {ranks} ranks; leave it out"
        )


def _check_features(config: Any) -> Iterator[str]:
    if config.model_config.runner_type != "generate":
        yield f"--runner must be generate for DeepSeek-V4, got {config.model_config.runner_type}; leave it out"
    if config.lora_config is not None:
        yield "--enable-lora is not supported for DeepSeek-V4; merge the adapter into the checkpoint or leave it out"
    if config.attention_config.hisparse_config is not None:
        yield "HiSparse (hisparse_config, HiSparseConnector) is not supported; leave it out"
    if config.attention_config.backend is not None:
        name = config.attention_config.backend.name
        yield f"--attention-backend has no effect for DeepSeek-V4 (the model brings its own), got {name}; leave it out"
    if config.cache_config.kv_cache_dtype_skip_layers:
        layers = ",".join(map(str, config.cache_config.kv_cache_dtype_skip_layers))
        yield f"--kv-cache-dtype-skip-layers is not supported (one row encoding per server), got {layers}; leave it out"
    if config.cache_config.kv_sharing_fast_prefill:
        yield "--kv-sharing-fast-prefill is not supported (layers do not share caches); leave it out"


def _check_speculation(config: Any) -> Iterator[str]:
    speculative = config.speculative_config
    if speculative is None:
        return
    flag, method = "--speculative-config", speculative.method
    if method not in ("mtp", "dspark"):
        yield f"{flag} method={method} is not available; use mtp or dspark, or leave {flag} out"
        return
    if arch.current() is arch.SM120:
        yield f"{flag} is not available on {arch.SM120.name} ({', '.join(arch.SM120.products)}); leave it out"
    if speculative.num_speculative_tokens > MAX_DRAFT_TOKENS:
        yield (
            f"{flag} num_speculative_tokens must be at most {MAX_DRAFT_TOKENS} (a step verifies up to "
            f"{MAX_DRAFT_TOKENS + 1} tokens of a request), got {speculative.num_speculative_tokens}"
        )
    try:
        spec = ModelSpec.from_config(config.model_config.hf_config)
    except ValueError:  # the check of the checkpoint reports it
        return
    yield from _check_draft(config, spec, method)


def _check_draft(config: Any, spec: ModelSpec, method: str) -> Iterator[str]:
    model, flag = config.model_config.model, "--speculative-config"
    if (stored := "mtp" if spec.dspark is None else "dspark") != method:
        found = "no dspark_block_size" if spec.dspark is None else "a dspark_block_size"
        yield f"{model}: config.json has {found}, so {flag} method={method} cannot load its drafts; use method={stored}"
        return
    if spec.num_draft_layers == 0:
        yield f"{model}: config.json has no draft layers (num_nextn_predict_layers is 0); leave {flag} out"
        return
    if not Path(model).is_dir() or config.load_config.load_format not in SAFETENSORS_FORMATS:
        return
    try:
        verify_draft(model, spec)
    except (ValueError, OSError) as error:
        yield str(error)


def _check_kv_transfer(config: Any) -> Iterator[str]:
    reason = "DeepSeek-V4 has caches with four page sizes, which need the hybrid KV cache manager"
    if config.scheduler_config.disable_hybrid_kv_cache_manager:
        yield f"--disable-hybrid-kv-cache-manager is not possible: {reason}; leave it out"
        return
    transfer = config.kv_transfer_config
    if transfer is None or transfer.kv_connector is None:
        return
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if not KVConnectorFactory.supports_hma_config(transfer):
        yield f"--kv-transfer-config kv_connector={transfer.kv_connector} switches it off: {reason}; use another one"


def _check_implementations(config: Any) -> Iterator[str]:
    try:
        encodings = encodings_of(config, arch.current())
    except ValueError:  # the plan reports it
        return
    try:
        selection.table(arch.current(), encodings)
    except ValueError as error:
        yield str(error)


CHECKS: tuple[Callable[[Any], Iterator[str]], ...] = (
    _check_checkpoint,
    _check_tokenizer,
    _check_block_size,
    _check_quantization,
    _check_parallel,
    _check_features,
    _check_speculation,
    _check_kv_transfer,
    _check_implementations,
)
