"""Run requests in a real vLLM engine, in a process of its own, and read back tokens and log-probabilities.

The subprocess is `python -m dsv4_rocm.testing.engine SCENARIO RESULT`, both JSON files. A scenario is {"engine":
keyword arguments of vllm.LLM, "steps": [step, ...]}; a step is {"name", "prompts": token ids, "max_tokens",
"prompt_logprobs": bool, "preempt_at": engine steps after which all running requests are preempted}.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP_LOGPROBS = 5
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What an engine answered, and what it logged."""

    requests: dict[str, list[dict[str, Any]]]
    platform: str
    vllm: str
    preemptions: int
    log: str


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
    return EngineRun(result["requests"], result["platform"], result["vllm"], result["preemptions"], log)


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


def _run(scenario: dict[str, Any]) -> dict[str, Any]:
    """Run all steps in one engine, in order, and collect their requests."""
    from vllm import LLM
    from vllm.platforms import current_platform

    llm = LLM(**scenario["engine"])
    results = {step["name"]: _run_step(llm, step) for step in scenario["steps"]}
    preemptions = [metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions"]
    return {
        "requests": results,
        "platform": type(current_platform).__qualname__,
        "vllm": importlib.metadata.version("vllm"),
        "preemptions": sum(preemptions),
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


def main(source: Path, target: Path) -> None:
    """Entry of the subprocess."""
    scenario = json.loads(source.read_text())
    if scenario.get("no_amx"):  # as on a CPU without AMX, whatever this one has
        import torch

        torch.cpu._is_amx_tile_supported = lambda: False
    target.write_text(json.dumps(_run(scenario)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
