"""A validation as steps with names, run one after the other, kept on disk so that it can go on later."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from dsv4_rocm.testing.client import Client

Outcome = Literal["pass", "fail", "skipped"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a step came to; `values` are figures for the report."""

    outcome: Outcome
    detail: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One question to the server; `name` is its key on disk."""

    name: str
    run: Callable[[Client], Result]


class Failed(AssertionError):
    """An answer is not what it must be."""


def require(holds: object, message: str) -> None:
    """Fail the step that is running unless `holds`."""
    if not holds:
        raise Failed(message)


def run_steps(
    client: Client,
    steps: Iterable[Step],
    state: Path,
    about: dict[str, Any],
    progress: Callable[[str, Result], None] = lambda name, result: None,
) -> dict[str, Result]:
    """Run what `state` does not hold as passed yet, and keep each result there at once.

    Args:
        client: the server.
        steps: what to run, in order.
        state: a JSON file; one that was written for another `about` is started anew.
        about: what the results are of (model, address, options).
        progress: called after each step, also for those kept from before.

    Raises:
        RequestFailed: the server does not answer; what is done is kept.
    """
    done = _read(state, about)
    results: dict[str, Result] = {}
    for step in steps:
        result = done.get(step.name)
        if result is None or result.outcome != "pass":
            try:
                result = step.run(client)
            except Failed as error:
                result = Result("fail", str(error))
        results[step.name] = result
        _write(state, about, done | results)
        progress(step.name, result)
    return results


def _read(state: Path, about: dict[str, Any]) -> dict[str, Result]:
    if not state.is_file():
        return {}
    try:
        kept = json.loads(state.read_text(encoding="utf-8"))
        return {name: Result(**one) for name, one in kept["results"].items()} if kept["about"] == about else {}
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{state} is no validation; choose another --output") from None


def _write(state: Path, about: dict[str, Any], results: dict[str, Result]) -> None:
    text = json.dumps({"about": about, "results": {name: asdict(one) for name, one in results.items()}}, indent=2)
    part = state.with_suffix(".part")
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(state)  # a run that is killed leaves the last whole file
