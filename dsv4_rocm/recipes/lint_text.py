"""Lints a pasted text: every serve command in it, and their pair when there are several."""

from collections.abc import Sequence
from pathlib import Path

from dsv4_rocm.cache.gpu_memory import GpuModel
from dsv4_rocm.recipes.lint import Finding, lint
from dsv4_rocm.recipes.pair import lint_pair
from dsv4_rocm.recipes.subject import Script, Subject, ask


def lint_script(
    script: Script, gpu: GpuModel, gpus: int | None = None, vllm_source: Path | None = None
) -> dict[str, list[Finding]]:
    """Findings by command (`vllm serve MODEL`), and of `pair` when there are several serve commands.

    Args:
        script: what was pasted.
        gpu: the product it runs on.
        gpus: GPUs of the machine, if that is known.
        vllm_source: see `ask`.
    """
    subjects = [
        Subject(_key(index, argv, script), argv, env, gpu, gpus) for index, (env, argv) in enumerate(script.serves)
    ]
    answers = ask(subjects, vllm_source)
    found = {subject.key: lint(subject, answers[subject.key]) for subject in subjects}
    if len(subjects) > 1:
        found["pair"] = lint_pair(subjects, [answers[subject.key] for subject in subjects], script.router)
    return found


def _key(index: int, argv: Sequence[str], script: Script) -> str:
    name = f"vllm serve {argv[0]}" if argv else "vllm serve"
    return name if len(script.serves) == 1 else f"{name} ({index + 1})"
