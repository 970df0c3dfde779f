"""The serve plan: every flag that concerns us, honoured, translated or refused, once, before vLLM touches it."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from dsv4_rocm import arch, envs, upstream
from dsv4_rocm.cache.layout import Encoding
from dsv4_rocm.cache.specs import index_encoding, row_encoding
from dsv4_rocm.kernels.selection import OPS
from dsv4_rocm_platform.refusals import BLOCK_SIZE, CHECKS

logger = logging.getLogger("vllm.dsv4_rocm.serve_plan")

THINK_MAX_LEN = 393_216
MODEL_TYPE = "deepseek_v4"
KEY = "dsv4_rocm"  # where the plan travels inside VllmConfig.additional_config


@dataclass(frozen=True, slots=True)
class ServePlan:
    """What a server does, decided once. It travels inside the VllmConfig: `ServePlan.of` reads it in any process.

    Attributes:
        block_size: tokens of a logical block.
        rows: encoding of key rows.
        index: encoding of index rows.
        notes: what a user should know: translations, limits.
    """

    block_size: int
    rows: Encoding
    index: Encoding
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, vllm_config: Any) -> "ServePlan | None":
        """The plan inside a VllmConfig, or None if none was made (another model)."""
        extra = vllm_config.additional_config
        stored = extra.get(KEY) if isinstance(extra, dict) else None
        if stored is None:
            return None
        return cls(stored["block_size"], Encoding(stored["rows"]), Encoding(stored["index"]), tuple(stored["notes"]))

    def store(self, vllm_config: Any) -> None:
        """Put the plan inside a VllmConfig, as JSON: vLLM hashes and pickles it with the rest."""
        stored = {**asdict(self), "rows": self.rows.value, "index": self.index.value, "notes": list(self.notes)}
        vllm_config.additional_config = {**vllm_config.additional_config, KEY: stored}

    def describe(self) -> str:
        return f"{self.rows.value} key rows, {self.index.value} index rows, {self.block_size}-token blocks"


def make(vllm_config: Any) -> ServePlan:
    """Read every flag once.

    Args:
        vllm_config: vLLM's configuration, before any platform changed it.

    Raises:
        ServeRefused: with every problem found (`upstream.refuse` says where it exits instead).
    """
    upstream.check_version()
    problems = [problem for check in CHECKS for problem in check(vllm_config)]
    rows = index = None
    try:
        rows = row_encoding(vllm_config.cache_config.cache_dtype, vllm_config.model_config.dtype)
        index = index_encoding(_indexer_dtype(vllm_config), rows, arch.current())
    except ValueError as error:
        problems.append(str(error))
    if problems or rows is None or index is None:
        upstream.refuse(*problems)
    return ServePlan(BLOCK_SIZE, rows, index, tuple(_notes(vllm_config)))


@contextmanager
def planned(vllm_config: Any) -> Iterator[ServePlan | None]:
    """Run a platform hook of vLLM with the plan made before it and kept after it.

    The hooks force block sizes and switch features off for the in-tree model; what the user asked for is put back.
    Yields None, and keeps nothing, for every other model.
    """
    if not is_ours(vllm_config):
        yield None
        return
    plan = ServePlan.of(vllm_config)
    if plan is None:
        plan = make(vllm_config)
        plan.store(vllm_config)
        logger.info("dsv4_rocm: serve plan: %s", plan.describe())
        for note in plan.notes:
            logger.warning("dsv4_rocm: %s", note)
    cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
    cache.block_size = plan.block_size
    chunked, batched = scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens
    prefix = cache.enable_prefix_caching
    yield plan
    if (cache.enable_prefix_caching, scheduler.enable_chunked_prefill) != (prefix, chunked):
        logger.info("dsv4_rocm: prefix caching (%s) and chunked prefill (%s) stay as asked for", prefix, chunked)
    cache.block_size = plan.block_size
    cache.enable_prefix_caching = prefix
    scheduler.enable_chunked_prefill = chunked
    scheduler.max_num_batched_tokens = batched


def is_ours(vllm_config: Any) -> bool:
    """Whether this configuration is of DeepSeek-V4 or of its draft model (which carries the target's plan)."""
    model = vllm_config.model_config
    if model is None:
        return False
    return getattr(model.hf_config, "model_type", None) == MODEL_TYPE or ServePlan.of(vllm_config) is not None


def translate_old_flags(parser: Any) -> None:
    """Make vLLM's parser accept `use_fp4_indexer_cache` (recipes older than 0.32) as `indexer_kv_dtype`."""
    for action in parser._actions:
        if action.dest == "attention_config" and action.type is not None:
            action.type = _translating(action.type)


def _translating(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse_attention_config(text: str) -> Any:
        return parse(translate_attention_config(text))

    return parse_attention_config


def translate_attention_config(text: str) -> str:
    """`{"use_fp4_indexer_cache": true}` -> `{"indexer_kv_dtype": "mxfp4"}`, the rest unchanged."""
    try:
        values = json.loads(text)
    except ValueError:
        return text  # vLLM's parser says what is wrong with it
    if not isinstance(values, dict) or "use_fp4_indexer_cache" not in values:
        return text
    old = values.pop("use_fp4_indexer_cache")
    if str(old).lower() in ("true", "1"):
        values.setdefault("indexer_kv_dtype", "mxfp4")
    new = f"indexer_kv_dtype={values['indexer_kv_dtype']}" if "indexer_kv_dtype" in values else "nothing (the default)"
    logger.warning("dsv4_rocm: use_fp4_indexer_cache=%s (older recipes) is read as %s", old, new)
    return json.dumps(values)


def _indexer_dtype(vllm_config: Any) -> str | None:
    value = vllm_config.attention_config.indexer_kv_dtype
    return None if value is None else str(value)


def _notes(config: Any) -> Iterator[str]:
    length = config.model_config.max_model_len
    if length < THINK_MAX_LEN:
        yield (
            f"Think Max (reasoning_effort max) needs --max-model-len {THINK_MAX_LEN} or more; it is {length}, "
            "so long answers of that mode will be cut"
        )
    yield from envs.unknown(OPS)
