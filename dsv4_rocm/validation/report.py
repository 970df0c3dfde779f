"""A validation on one page of Markdown."""

from collections.abc import Mapping
from typing import Any

from dsv4_rocm.validation.steps import Result


def markdown(about: Mapping[str, Any], results: Mapping[str, Result]) -> str:
    """What was validated, how it ended, and one row per step."""
    ended = {
        outcome: sum(one.outcome == outcome for one in results.values()) for outcome in ("pass", "fail", "skipped")
    }
    lines = [f"# Validation of {about['model']}", ""]
    lines += [f"- {name}: {value}" for name, value in about.items() if name != "model" and value is not None]
    lines += ["", f"**{verdict(results)}**: " + ", ".join(f"{count} {name}" for name, count in ended.items()), ""]
    lines += ["| step | outcome | detail |", "|---|---|---|"]
    for name, one in results.items():
        detail = one.detail.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {name} | {one.outcome} | {detail} |")
    return "\n".join(lines) + "\n"


def verdict(results: Mapping[str, Result]) -> str:
    """`failed`, `incomplete` (a step was skipped) or `passed`."""
    outcomes = {one.outcome for one in results.values()}
    return "failed" if "fail" in outcomes else "incomplete" if "skipped" in outcomes or not outcomes else "passed"
