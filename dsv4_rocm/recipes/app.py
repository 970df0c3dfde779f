"""`dsv4-rocm recipes ...`: list, show, render, check, plan, pair, diff, lint-command; `--json` everywhere."""

import json as json_module
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from dsv4_rocm.recipes.lint import Finding
    from dsv4_rocm.recipes.schema import Recipe

# PyYAML, pydantic and torch take time to import, and the first two may be missing: commands import what they need.
app = typer.Typer(help="Serve recipes: typed, checked against vLLM's parser, planned.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Id = Annotated[str, typer.Argument(help="A recipe; `recipes list` shows them.", show_default=False)]
Folder = Annotated[Path | None, typer.Option("--directory", help="Recipe files to use.", show_default=False)]
Source = Annotated[
    Path | None,
    typer.Option(help="A directory with another `vllm` package, an unpacked source release.", show_default=False),
]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the command with status 2 and the message where the user, a file or the environment is wrong."""
    try:
        yield
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        sys.stderr.write(f"dsv4-rocm: {error}\n")
        raise typer.Exit(2) from None


@app.command("list")
def list_recipes(folder: Folder = None, json: Json = False) -> None:
    """One line per recipe."""
    with one_line_errors():
        from dsv4_rocm.recipes import store

        recipes = list(store.load(folder).values())
    if json:
        _print_json([_as_json(recipe) for recipe in recipes])
        return
    width = max((len(recipe.id) for recipe in recipes), default=0)
    for recipe in recipes:
        sys.stdout.write(f"{recipe.id:{width}}  {recipe.status.level:11}  {recipe.title}\n")


@app.command()
def show(recipe: Id, folder: Folder = None, json: Json = False) -> None:
    """Everything a recipe says, fragments put together."""
    with one_line_errors():
        import yaml

        from dsv4_rocm.recipes import store

        found = _as_json(store.get(recipe, folder))
    if json:
        _print_json(found)
    else:
        sys.stdout.write(yaml.safe_dump(found, sort_keys=False, width=120))


@app.command()
def render(
    recipe: Id,
    form: Annotated[Literal["bash", "argv", "docker", "k8s", "env"], typer.Option("--as", help="Which form.")] = "bash",
    image: Annotated[str, typer.Option(help="vLLM's image with this package.")] = "dsv4-rocm:latest",
    folder: Folder = None,
    json: Json = False,
) -> None:
    """The commands of a recipe, in the order to start them."""
    with one_line_errors():
        from dsv4_rocm.recipes import command, store
        from dsv4_rocm.recipes.check import members

        found = store.get(recipe, folder)
        servers = members(found, store.load(folder))
        started = command.commands(found, servers)
        owners = {server.id: server for server in servers} | {found.id: found}
        texts = {one.name: command.render(one, owners.get(one.name, found), form, image) for one in started}
    if json:
        _print_json([{"name": one.name, "env": dict(one.env), "argv": list(one.argv)} for one in started])
        return
    head = len(texts) > 1 and form in ("bash", "docker", "env")
    separator = "\n---\n" if form == "k8s" else "\n\n" if head else "\n"
    parts = [f"# {name}\n{text}" if head else text for name, text in texts.items()]
    sys.stdout.write(separator.join(parts) + "\n")


@app.command()
def check(
    recipe: Annotated[str | None, typer.Argument(help="A recipe, or --all.", show_default=False)] = None,
    every: Annotated[bool, typer.Option("--all", help="All recipes.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
    vllm_source: Source = None,
    folder: Folder = None,
    json: Json = False,
) -> None:
    """Ask the installed vLLM's parser and configuration, the serve plan, lint and planner. Status 1 on errors."""
    with one_line_errors():
        if (recipe is None) is not every:
            raise ValueError("name one recipe, or give --all")
        from dsv4_rocm.recipes import store
        from dsv4_rocm.recipes.check import check as run

        recipes = store.load(folder)
        chosen = list(recipes.values()) if recipe is None else [store.get(recipe, folder)]
        outcomes = run(chosen, recipes, vllm_source)
    bad = ("error", "warning") if strict else ("error",)
    failed = [one for one in outcomes if any(finding.level in bad for finding in one.findings)]
    if json:
        _print_json(
            [
                {"recipe": one.recipe.id, "ok": one not in failed, "findings": _findings_json(one.findings)}
                for one in outcomes
            ]
        )
    else:
        for one in outcomes:
            sys.stdout.write(f"{'FAIL' if one in failed else 'ok'}  {one.recipe.id}  ({one.recipe.status.level})\n")
            _print_findings(one.findings, "    ")
    raise typer.Exit(1 if failed else 0)


@app.command()
def plan(recipe: Id, folder: Folder = None, json: Json = False) -> None:
    """The memory plan of a recipe. Status 1 if it does not fit; the report names the largest context that does."""
    with one_line_errors():
        from dsv4_rocm.cache.plan_report import render as report
        from dsv4_rocm.cache.planner import as_json
        from dsv4_rocm.recipes import store
        from dsv4_rocm.recipes.check import subject_of
        from dsv4_rocm.recipes.memory import plan_of
        from dsv4_rocm.recipes.subject import ask

        found = store.get(recipe, folder)
        if found.pair is not None:
            raise ValueError(f"{recipe} is a pair; plan {' and '.join(found.pair.members)}")
        subject = subject_of(found)
        answer = ask([subject])[subject.key]
        if answer.config is None or subject.checkpoint is None:
            problems = [*(f"{flag}: {text}" for flag, text in answer.parse), *answer.refused]
            raise ValueError(f"{recipe} has no configuration to plan: {'; '.join(problems)}")
        made = plan_of(subject, answer, subject.checkpoint)
    if json:
        _print_json(as_json(made))
    else:
        sys.stdout.write(report(made) + "\n")
    raise typer.Exit(0 if made.fits else 1)


@app.command()
def pair(recipe: Id, folder: Folder = None, json: Json = False) -> None:
    """Check a pair: its servers, their ports, roles and devices, and the router. Status 1 on errors."""
    with one_line_errors():
        from dsv4_rocm.recipes import store

        if store.get(recipe, folder).pair is None:
            raise ValueError(f"{recipe} is one server, not a pair; use recipes check")
    check(recipe, folder=folder, json=json)


@app.command()
def diff(one: Id, other: Id, folder: Folder = None, json: Json = False) -> None:
    """Fields in which two recipes differ. Status 1 if any."""
    with one_line_errors():
        from dsv4_rocm.recipes import store
        from dsv4_rocm.recipes.twins import differences

        found = differences(store.get(one, folder), store.get(other, folder))
    if json:
        _print_json({field: list(values) for field, values in found.items()})
    else:
        for field, (left, right) in found.items():
            sys.stdout.write(f"{field}: {left} | {right}\n")
    raise typer.Exit(1 if found else 0)


@app.command("lint-command", context_settings={"ignore_unknown_options": True})
def lint_command(
    words: Annotated[
        list[str] | None, typer.Argument(help="-- [NAME=value ...] vllm serve MODEL --flag ...", show_default=False)
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A shell text instead: commands, exports, a router.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Product it runs on; by default that of this machine.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of the machine.")] = None,
    vllm_source: Source = None,
    json: Json = False,
) -> None:
    """Say what a pasted `vllm serve` command will do here. Status 1 on errors."""
    with one_line_errors():
        from dsv4_rocm.recipes.lint import Finding
        from dsv4_rocm.recipes.lint_text import lint_script
        from dsv4_rocm.recipes.products import here, product
        from dsv4_rocm.recipes.subject import read_script, split_shell, split_words

        if (file is None) is not bool(words):
            raise ValueError("give a command after --, or --file")
        script = read_script(split_shell(file.read_text()) if file is not None else split_words(words or []))
        chosen = here() if gpu is None else product(gpu)
        found = lint_script(script, chosen, gpus, vllm_source)
    errors = any(finding.level == "error" for findings in found.values() for finding in findings)
    if json:
        _print_json({"gpu": chosen.name, "commands": {key: _findings_json(one) for key, one in found.items()}})
    else:
        sys.stdout.write(f"on {chosen.name} ({chosen.arch}){'' if gpu else '; --gpu names another'}\n")
        for key, findings in found.items():
            sys.stdout.write(f"{key}\n")
            _print_findings(findings or [Finding("note", "none", "nothing to say")], "    ")
    raise typer.Exit(1 if errors else 0)


def _as_json(recipe: "Recipe") -> dict[str, Any]:
    found: dict[str, Any] = json_module.loads(recipe.model_dump_json(by_alias=True, exclude_none=True))
    return found


def _findings_json(findings: Any) -> list[dict[str, str]]:
    return [{"level": one.level, "rule": one.rule, "message": one.message} for one in findings]


def _print_findings(findings: "list[Finding] | tuple[Finding, ...]", indent: str) -> None:
    for one in findings:
        sys.stdout.write(f"{indent}{one.level:7} {one.message}\n")


def _print_json(value: Any) -> None:
    sys.stdout.write(json_module.dumps(value, indent=2) + "\n")
