"""Asks vLLM about serve commands on simulated architectures: JSON cases on stdin, JSON answers on stdout.

Run as `python -m dsv4_rocm.recipes.probe`; one process per platform that vLLM knows only one of at a time.
"""

import argparse
import contextlib
import importlib
import io
import json
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsv4_rocm.arch import Vendor, get
from dsv4_rocm.recipes.checkpoints import Checkpoint, checkpoint, write_directory

_CHOICE = re.compile(r"argument (\S+): (.*)", re.DOTALL)
_CLI_ARGS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.common.cli_args")  # 0.32, 0.33
_REPEATS = 20  # wrong flags reported for one command
_SWITCHES = ("enforce_eager", "headless", "enable_auto_tool_choice", "reasoning_parser", "tool_call_parser")


def answer_all(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Answers by key, for architectures that one simulation serves; see `_answer`. Run in a process of its own."""
    sys.stdout = sys.stderr  # vLLM logs to stdout
    from dsv4_rocm import arch
    from dsv4_rocm.testing.simulated_platform import simulate

    simulate(cases[0]["arch"])
    _triton_as_on_a_gpu()
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = _cli_args().make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    with tempfile.TemporaryDirectory() as scratch:
        answers = {}
        for case in cases:
            with arch.override(case["arch"]):
                answers[case["key"]] = _answer(parser, case, Path(scratch))
        return answers


def _cli_args() -> Any:
    """vLLM's module with the arguments of `vllm serve`."""
    for name in _CLI_ARGS:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ImportError(f"this vLLM has none of {', '.join(_CLI_ARGS)}")


def _triton_as_on_a_gpu() -> None:
    # Without a GPU vLLM puts functions in place of Triton's classes, and connectors import a module that reads Configs;
    # and it takes its older model runner, which knows no DSpark.
    import triton
    import vllm.config.vllm
    import vllm.triton_utils

    vllm.triton_utils.triton.Config = triton.Config
    vllm.config.vllm.HAS_TRITON = True


def _answer(parser: Any, case: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """What the parser, EngineArgs and our serve plan say.

    Returns a dictionary: `parse` (list of [flag, message]; empty when all is understood), `refused` (messages),
    `config` (what concerns us, resolved; None without one), `notes` (of the serve plan), `unknown_env`.
    """
    words = list(case["argv"])
    errors: list[list[str]] = []
    parsed = None
    while parsed is None and len(errors) < _REPEATS:
        parsed, problem = _parse(parser, words)
        if problem is not None:
            errors.append(problem)
            words = _without(words, problem[0])
            if problem[0] == "":
                break
    answer: dict[str, Any] = {"parse": errors, "refused": [], "config": None, "notes": []}
    answer["unknown_env"] = _unknown_env(case["env"])
    if parsed is None:
        return answer
    found = checkpoint(str(parsed.model_tag or parsed.model))
    if found is not None:
        parsed.model, parsed.model_tag, parsed.load_format = str(_directory(scratch, found)), None, "dummy"
    with _environment(case["env"]):
        answer |= _configure(parsed)
    return answer


def _parse(parser: Any, words: list[str]) -> tuple[argparse.Namespace | None, list[str] | None]:
    """The parsed command, or the first problem: [flag as it was typed, message]."""
    text = io.StringIO()
    try:
        with contextlib.redirect_stderr(text):
            return parser.parse_args(words), None
    except SystemExit:
        message = text.getvalue().rsplit("error: ", 1)[-1].strip()
    except Exception as error:
        message = str(error)
    if message.startswith("unrecognized arguments: "):
        return None, [_typed(words, message.removeprefix("unrecognized arguments: ").split()[0]), "unknown"]
    match = _CHOICE.match(message)
    if match is None:
        return None, ["", message]
    for name in reversed(match[1].split("/")):
        if typed := _typed(words, name):
            return None, [typed, match[2]]
    return None, ["", message]


def _typed(words: list[str], name: str) -> str:
    """How a flag was typed; underscores and dots are vLLM's freedom."""
    for word in words:
        flag = word.split("=")[0].split(".")[0]
        if word.startswith("-") and flag.replace("_", "-") == name.split("=")[0].split(".")[0].replace("_", "-"):
            return word.split("=")[0]
    return name if name in words else ""


def _without(words: list[str], flag: str) -> list[str]:
    kept: list[str] = []
    skipping = False
    for word in words:
        if word.split("=")[0] == flag:
            skipping = "=" not in word
            continue
        if skipping and not word.startswith("-"):
            continue
        skipping = False
        kept.append(word)
    return kept


def _directory(scratch: Path, found: Checkpoint) -> Path:
    path = scratch / f"{found.label}-{found.draft}-{found.experts}"
    return path if path.is_dir() else write_directory(path, found)


def _configure(parsed: argparse.Namespace) -> dict[str, Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    from dsv4_rocm_platform.serve_plan import ServePlan

    asked = _asked(parsed)
    try:
        _cli_args().validate_parsed_serve_args(parsed)
        config = AsyncEngineArgs.from_cli_args(parsed).create_engine_config(
            usage_context=UsageContext.OPENAI_API_SERVER, headless=parsed.headless
        )
    except Exception as error:
        return {"refused": _messages(error), "asked": asked}
    plan = ServePlan.of(config)
    return {"config": _summary(config), "asked": asked, "notes": list(plan.notes) if plan else []}


def _messages(error: Exception) -> list[str]:
    details = error.errors() if hasattr(error, "errors") else [{"msg": str(error), "loc": ()}]
    lines = []
    for detail in details:
        message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        where = ".".join(map(str, detail["loc"]))
        lines += [f"{where}: {message}"] if where else message.splitlines()
    return lines


def _asked(parsed: argparse.Namespace) -> dict[str, Any]:
    """What was typed and does not survive in the configuration."""
    asked = {name: getattr(parsed, name, None) for name in _SWITCHES}
    graphs = parsed.compilation_config.cudagraph_mode
    asked["cudagraph_mode"] = None if graphs is None else graphs.name
    asked["max_model_len_auto"] = parsed.max_model_len == -1
    asked["port"], asked["host"] = parsed.port, parsed.host
    return asked


def _summary(config: Any) -> dict[str, Any]:
    from dsv4_rocm.attention.metadata_builder import MetadataBuilder

    parallel, scheduler, cache = config.parallel_config, config.scheduler_config, config.cache_config
    transfer, compilation = config.kv_transfer_config, config.compilation_config
    return {
        "tensor": parallel.tensor_parallel_size,
        "data": parallel.data_parallel_size,
        "data_local": parallel.data_parallel_size_local,
        "pipeline": parallel.pipeline_parallel_size,
        "expert": parallel.enable_expert_parallel,
        "max_model_len": config.model_config.max_model_len,
        "tokenizer_mode": config.model_config.tokenizer_mode,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "async_scheduling": bool(scheduler.async_scheduling),
        "kv_cache_dtype": str(cache.cache_dtype),
        "indexer_kv_dtype": str(config.attention_config.indexer_kv_dtype or "auto"),
        "kv_cache_memory_bytes": cache.kv_cache_memory_bytes,
        "utilization": cache.gpu_memory_utilization,
        "moe_backend": config.kernel_config.moe_backend,
        "eager": config.model_config.enforce_eager,
        "cudagraph_mode": compilation.cudagraph_mode.name,
        "graph_support": MetadataBuilder.get_cudagraph_support(config, None).name,
        "plain_torch_ops": _plain_torch(config),
        "connector": transfer and transfer.kv_connector,
        "kv_role": transfer and transfer.kv_role,
    }


def _plain_torch(config: Any) -> list[str]:
    from dsv4_rocm import arch
    from dsv4_rocm.cache.specs import encodings_of
    from dsv4_rocm.kernels.selection import table

    current = arch.current()
    return [one.op for one in table(current, encodings_of(config, current)) if one.chosen.name == "reference"]


def _unknown_env(names: dict[str, str]) -> list[str]:
    import vllm.envs

    return [name for name in names if name.startswith("VLLM_") and name not in vllm.envs.environment_variables]


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    # The devices of the simulation are not those of this machine.
    shown = {name: value for name, value in values.items() if not name.endswith("VISIBLE_DEVICES")}
    before = dict(os.environ)
    os.environ.update(shown)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> None:
    """Read cases `{key, arch, argv (after `vllm serve`), env}` and write answers by key."""
    output, sys.stdout = sys.stdout, sys.stderr
    cases = json.load(sys.stdin)
    groups: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        # vLLM's ROCm platform reads the name of its architecture at import; CUDA's asks every time.
        name = case["arch"]
        groups.setdefault(name if get(name).vendor is Vendor.AMD else "nvidia", []).append(case)
    import transformers.models.auto.modeling_auto  # noqa: F401  once, for all children; vLLM is imported in each

    answers: dict[str, Any] = {}
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for found in pool.imap(answer_all, groups.values()):
            answers |= found
    json.dump(answers, output)


if __name__ == "__main__":
    main()
