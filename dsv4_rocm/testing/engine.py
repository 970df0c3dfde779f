"""Run requests in a real vLLM engine, in a process of its own, and read back tokens and log-probabilities.

The subprocess is `python -m dsv4_rocm.testing.engine SCENARIO RESULT`, both JSON files. A scenario is {"engine":
keyword arguments of vllm.LLM, "steps": [step, ...]}; a step is {"name", "prompts": token ids, "max_tokens",
"prompt_logprobs": bool, "preempt_at": engine steps after which all running requests are preempted, "record_drafts":
bool}.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dsv4_rocm.testing.draft_recorder import recorded_blocks, recorded_drafts

TOP_LOGPROBS = 5
RECORDERS = {"mtp": recorded_drafts, "dspark": recorded_blocks}
V2_RUNNER = {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1"}  # its kernels have no other form on a CPU
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}


@dataclass(frozen=True, slots=True)
class Drafts:
    """vLLM's own count of drafts: tokens drafted, tokens accepted, and accepted by position within a draft."""

    tokens: int
    accepted: int
    accepted_by_position: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What an engine answered, and what it logged; `draft_calls` by step are those of its recorder."""

    requests: dict[str, list[dict[str, Any]]]
    platform: str
    vllm: str
    preemptions: int
    log: str
    drafts: Drafts
    draft_calls: dict[str, list[dict[str, Any]]]


def run_engine(directory: Path, name: str, scenario: dict[str, Any], env: dict[str, str] | None = None) -> EngineRun:
    """Run a scenario in a subprocess and read its result."""
    source, target = directory / f"{name}.scenario.json", directory / f"{name}.result.json"
    source.write_text(json.dumps(scenario))
    done = subprocess.run(
        [sys.executable, "-m", "dsv4_rocm.testing.engine", str(source), str(target)],
        env=os.environ | ENVIRONMENT | (env or {}),
        capture_output=True,
        text=True,
        timeout=600,
    )
    log = done.stdout + done.stderr
    if done.returncode != 0:
        raise RuntimeError(f"engine {name} failed:\n{log[-4000:]}")
    result = json.loads(target.read_text())
    tokens, accepted, by_position = result["drafts"]
    drafts = Drafts(tokens, accepted, tuple(by_position))
    calls = torch.load(_calls_file(target)) if _calls_file(target).exists() else {}
    return EngineRun(result["requests"], result["platform"], result["vllm"], result["preemptions"], log, drafts, calls)


def _calls_file(target: Path) -> Path:
    return target.with_suffix(".drafts.pt")


def engine_arguments(checkpoint: Path, **changed: Any) -> dict[str, Any]:
    """Arguments of vllm.LLM that every scenario shares."""
    common = {
        "model": str(checkpoint),
        "dtype": "float32",
        "block_size": 256,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "enforce_eager": True,
        "seed": 0,
        "disable_log_stats": False,
    }
    return common | changed


def _run(scenario: dict[str, Any], calls_file: Path) -> dict[str, Any]:
    """Run all steps in one engine, in order, and collect their requests."""
    from vllm import LLM
    from vllm.platforms import current_platform

    llm = LLM(**scenario["engine"])
    results, calls = {}, {}
    for step in scenario["steps"]:
        if step.get("record_drafts"):
            method = scenario["engine"]["speculative_config"]["method"]
            with RECORDERS[method]() as calls[step["name"]]:
                results[step["name"]] = _run_step(llm, step)
        else:
            results[step["name"]] = _run_step(llm, step)
    if calls:
        torch.save(calls, calls_file)
    metrics = {metric.name.removeprefix("vllm:"): metric for metric in llm.get_metrics()}

    def value(name: str, part: str = "value", default: Any = 0) -> Any:
        return getattr(metrics[name], part) if name in metrics else default

    counts = [value(f"spec_decode_num_{part}_tokens") for part in ("draft", "accepted")]
    return {
        "requests": results,
        "platform": type(current_platform).__qualname__,
        "vllm": importlib.metadata.version("vllm"),
        "preemptions": value("num_preemptions"),
        "drafts": [*counts, value("spec_decode_num_accepted_tokens_per_pos", "values", [])],
    }


def _run_step(llm: Any, step: dict[str, Any]) -> list[dict[str, Any]]:
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0,
        max_tokens=step["max_tokens"],
        logprobs=TOP_LOGPROBS,
        prompt_logprobs=TOP_LOGPROBS if step.get("prompt_logprobs") else None,
        ignore_eos=True,
    )
    engine = llm.llm_engine
    for i, prompt in enumerate(step["prompts"]):
        engine.add_request(f"{step['name']}-{i}", {"prompt_token_ids": prompt}, params)
    finished, steps = [], 0
    while engine.has_unfinished_requests():
        finished += [output for output in engine.step() if output.finished]
        steps += 1
        if steps in step.get("preempt_at", []):
            engine.reset_prefix_cache(reset_running_requests=True)
    finished.sort(key=lambda output: int(output.request_id.split("-")[-1]))
    return [_request(output) for output in finished]


def _request(output: Any) -> dict[str, Any]:
    def plain(logprobs: Any) -> dict[str, float]:
        return {str(token): entry.logprob for token, entry in (logprobs or {}).items()}

    completion = output.outputs[0]
    return {
        "prompt": list(output.prompt_token_ids),
        "tokens": list(completion.token_ids),
        "cached": output.num_cached_tokens,
        "prompt_logprobs": [plain(entry) for entry in output.prompt_logprobs or []],
        "logprobs": [plain(entry) for entry in completion.logprobs],
    }


def make_triton_active() -> None:
    """A CPU build of vLLM looks for a driver called cpu before it launches a kernel, interpreted or not."""
    from triton.backends import Backend, backends

    driver = type("InterpreterDriver", (), {"is_active": staticmethod(lambda: True)})
    backends["cpu"] = Backend(compiler=None, driver=driver)


def main(source: Path, target: Path) -> None:
    """Entry of the subprocess."""
    scenario = json.loads(source.read_text())
    if scenario.get("no_amx"):  # as on a CPU without AMX, whatever this one has
        torch.cpu._is_amx_tile_supported = lambda: False
    if os.environ.get("TRITON_INTERPRET") == "1":
        make_triton_active()
    target.write_text(json.dumps(_run(scenario, _calls_file(target))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
