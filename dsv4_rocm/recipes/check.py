"""Checks recipes: vLLM's parser and configuration, our serve plan, lint, memory plan, and what the status says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv4_rocm.recipes.command import router_argv, serve_argv
from dsv4_rocm.recipes.lint import Finding, lint
from dsv4_rocm.recipes.memory import plan_of
from dsv4_rocm.recipes.pair import lint_pair
from dsv4_rocm.recipes.schema import Recipe
from dsv4_rocm.recipes.subject import Answer, Subject, ask


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check of one recipe found; `ok` is what the exit status says."""

    recipe: Recipe
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.level == "error" for finding in self.findings)


def subject_of(recipe: Recipe) -> Subject:
    """The recipe's command on its own machine."""
    return Subject(recipe.id, serve_argv(recipe)[2:], recipe.env, recipe.hardware.gpu, recipe.hardware.gpus)


def check(chosen: Sequence[Recipe], recipes: Mapping[str, Recipe], vllm_source: Path | None = None) -> list[Outcome]:
    """Check recipes, members of pairs with them; vLLM is asked once for all.

    Args:
        chosen: what to check.
        recipes: every recipe by id, for the members of pairs.
        vllm_source: see `ask`.
    """
    servers: dict[str, Recipe] = {}
    for recipe in chosen:
        for server in members(recipe, recipes) or [recipe]:
            servers[server.id] = server
    answers = ask([subject_of(server) for server in servers.values()], vllm_source)
    return [Outcome(recipe, tuple(_findings(recipe, recipes, answers))) for recipe in chosen]


def members(recipe: Recipe, recipes: Mapping[str, Recipe]) -> list[Recipe]:
    """Recipes of the servers of a pair; empty for one server."""
    return [recipes[name] for name in recipe.pair.members] if recipe.pair else []


def _findings(recipe: Recipe, recipes: Mapping[str, Recipe], answers: Mapping[str, Answer]) -> list[Finding]:
    servers = members(recipe, recipes)
    if not servers:
        subject, answer = subject_of(recipe), answers[recipe.id]
        found = lint(subject, answer)
        return _judged(recipe, [*found, *_memory(recipe, subject, answer)])
    subjects, told = [subject_of(one) for one in servers], [answers[one.id] for one in servers]
    found = [
        Finding(finding.level, finding.rule, f"{subject.key}: {finding.message}")
        for subject, answer in zip(subjects, told, strict=True)
        for finding in lint(subject, answer)
    ]
    if recipe.pair is not None and recipe.pair.router is not None:
        words = router_argv(recipe.pair.router, servers)[1:]
        found += lint_pair(subjects, told, words)
    return _judged(recipe, found)


def _memory(recipe: Recipe, subject: Subject, answer: Answer) -> list[Finding]:
    """Whether the plan holds what the recipe promises."""
    found = subject.checkpoint
    wanted = recipe.memory.context
    if answer.config is None or found is None or wanted is None:
        return []
    plan = plan_of(subject, answer, found)
    if plan.max_context < wanted:
        text = f"the recipe promises {wanted} tokens of context, and the plan admits {plan.max_context}"
        return [Finding("error", "promise", text)]
    requests = recipe.memory.requests
    if requests is not None and plan.concurrency(wanted) < requests:
        text = f"the recipe promises {requests:g} requests of {wanted} tokens, the plan {plan.concurrency(wanted):.1f}"
        return [Finding("error", "promise", text)]
    return []


def _judged(recipe: Recipe, found: list[Finding]) -> list[Finding]:
    """An unsupported recipe must be refused: its refusals become notes, and their absence is an error."""
    if recipe.status.level != "unsupported":
        return found
    if not any(finding.level == "error" for finding in found):
        text = "is marked unsupported, but nothing refuses it; mark it derived"
        return [*found, Finding("error", "status", f"{recipe.id} {text}")]
    return [
        Finding("note", finding.rule, f"refused, as marked: {finding.message}") if finding.level == "error" else finding
        for finding in found
    ]
