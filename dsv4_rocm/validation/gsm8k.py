"""GSM8K by lm_eval, eight examples in the prompt, judged against the published score of 4x MI355X."""

import json
import math
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dsv4_rocm.testing.client import Client
from dsv4_rocm.validation.steps import Result, Step

FILES = ("train.jsonl", "test.jsonl")
SIGMAS = 3


@dataclass(frozen=True, slots=True)
class Score:
    """A share of right answers and its standard error."""

    value: float
    error: float

    def agrees(self, other: "Score") -> bool:
        """Whether both may be the same: `|a - b| <= 3 sqrt(ea^2 + eb^2)`."""
        return abs(self.value - other.value) <= SIGMAS * math.hypot(self.error, other.error)


PUBLISHED = {"flexible-extract": Score(0.9439, 0.0063), "strict-match": Score(0.9431, 0.0064)}


def gsm8k(model: str, limit: int | None, data: Path | None, tokenizer: str | None, concurrent: int = 128) -> Step:
    """The step; without lm_eval it is skipped, and says so.

    Args:
        model: the name the server gives it.
        limit: questions, or all 1,319.
        data: a directory with train.jsonl and test.jsonl, for machines without a hub.
        tokenizer: directory or repository of the tokenizer; None asks lm_eval to send text.
        concurrent: requests at once.

    Raises:
        ValueError: the directory lacks a file.
    """
    absent = [name for name in FILES if data is not None and not (data / name).is_file()]
    if absent:
        raise ValueError(f"--data {data} has no {' and no '.join(absent)} (of openai/grade-school-math)")

    def run(client: Client) -> Result:
        program = find_program()
        if program is None:
            return Result("skipped", "lm_eval is not installed: pip install 'lm-eval[api]'")
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            words = command(program, client.url, model, limit, data, tokenizer, concurrent, folder)
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode:
                return Result("fail", f"lm_eval ended with status {done.returncode}: {done.stderr.strip()[-300:]}")
            return judge(_scores(folder), limit)

    return Step("gsm8k", run)


def find_program() -> list[str] | None:
    """How to run lm_eval, or None."""
    path = shutil.which("lm_eval") or shutil.which("lm_eval", path=str(Path(sys.executable).parent))
    if path is not None:
        return [path]
    return [sys.executable, "-m", "lm_eval"] if find_spec("lm_eval") else None


def command(
    program: list[str],
    url: str,
    model: str,
    limit: int | None,
    data: Path | None,
    tokenizer: str | None,
    concurrent: int,
    folder: Path,
) -> list[str]:
    """The published command; with `data` the task reads files instead of the hub."""
    arguments = [f"model={model}", f"base_url={url}/v1/completions", f"num_concurrent={concurrent}"]
    arguments += ["max_retries=10", "max_gen_toks=2048", "timeout=60000"]
    if tokenizer is None:
        arguments += ["tokenizer_backend=None", "tokenized_requests=False"]
    else:
        arguments += [f"tokenizer={tokenizer}"]
    task = "gsm8k"
    words = [*program, "--model", "local-completions", "--model_args", ",".join(arguments), "--batch_size", "auto"]
    if data is not None:
        task = "gsm8k_files"
        (folder / f"{task}.yaml").write_text(_task(task, data), encoding="utf-8")
        words += ["--include_path", str(folder)]
    words += ["--tasks", task, "--num_fewshot", "8", "--output_path", str(folder / "results")]
    return words if limit is None else [*words, "--limit", str(limit)]


def judge(scores: dict[str, Score], limit: int | None) -> Result:
    """Compare scores by filter with the published ones."""
    values = {name: score.value for name, score in scores.items()}
    if set(scores) != set(PUBLISHED):
        return Result(
            "fail", f"lm_eval gave {', '.join(scores) or 'no score'}, expected {', '.join(PUBLISHED)}", values
        )
    parts = [
        f"{name} {score.value:.4f} +- {score.error:.4f} (published {PUBLISHED[name].value} +- {PUBLISHED[name].error})"
        for name, score in scores.items()
    ]
    good = all(score.agrees(PUBLISHED[name]) for name, score in scores.items())
    few = "" if limit is None else f"; {limit} questions"
    return Result("pass" if good else "fail", "; ".join(parts) + few, values)


def _task(name: str, data: Path) -> str:
    files = {"train": str((data / "train.jsonl").resolve()), "test": str((data / "test.jsonl").resolve())}
    spec = find_spec("lm_eval")
    base = Path(spec.origin).parent / "tasks/gsm8k/gsm8k.yaml" if spec is not None and spec.origin else "gsm8k.yaml"
    return (
        f"include: {base}\ntask: {name}\ndataset_path: json\ndataset_name: null\n"
        f"dataset_kwargs: {json.dumps({'data_files': files})}\n"
    )


def _scores(folder: Path) -> dict[str, Score]:
    """Scores by filter from the newest results file below a folder."""
    files = sorted((folder / "results").rglob("results*.json"))
    if not files:
        return {}
    (values,) = json.loads(files[-1].read_text(encoding="utf-8"))["results"].values()
    found = {}
    for key, value in values.items():
        metric, _, name = key.partition(",")
        if metric == "exact_match":
            found[name] = Score(float(value), _number(values.get(f"exact_match_stderr,{name}", 0.0)))
    return found


def _number(value: object) -> float:
    """lm_eval writes "N/A" where there is one question only."""
    return float(value) if isinstance(value, int | float) else 0.0
