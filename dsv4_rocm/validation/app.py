"""`dsv4-rocm validate` and `dsv4-rocm parity record|compare`: a running server, over its OpenAI API."""

import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from dsv4_rocm.testing.client import Client, RequestFailed

parity_app = typer.Typer(help="Record what a server says, compare another server with it.", no_args_is_help=True)
Url = Annotated[str, typer.Option("--base-url", help="Of the server, without /v1.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Seconds = Annotated[float, typer.Option("--timeout", help="For one request.")]
NEEDLES = (2_048, 10_000, 32_768, 131_072)
PARTS = ("probes", "needle", "gsm8k")


def validate(
    base_url: Url,
    recipe: Annotated[
        str | None, typer.Option(help="Take needles and think modes from it.", show_default=False)
    ] = None,
    needle: Annotated[str | None, typer.Option(help="Lengths of the ladder: 2048,10000.", show_default=False)] = None,
    skip: Annotated[list[str] | None, typer.Option(help="probes, needle or gsm8k.", show_default=False)] = None,
    limit: Annotated[int | None, typer.Option(help="GSM8K questions; by default all.", show_default=False)] = None,
    data: Annotated[Path | None, typer.Option(help="train.jsonl and test.jsonl of GSM8K.", show_default=False)] = None,
    tokenizer: Annotated[str | None, typer.Option(help="For lm_eval; by default it sends text.")] = None,
    output: Annotated[Path, typer.Option(help="State (to go on later) and report.")] = Path("validation"),
    timeout: Seconds = 3_600.0,
    json: Json = False,
) -> None:
    """Judge a server: needles, think modes, tools, streaming, prefix cache, GSM8K. Status 1 unless all pass."""
    try:
        client = Client(base_url.rstrip("/").removesuffix("/v1"), timeout)
        served = client.get("/v1/models")["data"][0]
        steps, about = _plan(served, client.url, recipe, needle, skip or [], limit, data, tokenizer)
        output.mkdir(parents=True, exist_ok=True)
        results = _run(client, steps, output, about)
    except (RequestFailed, ValueError, OSError, ImportError) as error:
        _stop(error)
    from dsv4_rocm.validation.report import markdown, verdict

    (output / "report.md").write_text(markdown(about, results), encoding="utf-8")
    ended = verdict(results)
    if json:
        kept = {name: {"outcome": one.outcome, "detail": one.detail, **one.values} for name, one in results.items()}
        sys.stdout.write(json_module.dumps({"verdict": ended, "about": about, "results": kept}, indent=2) + "\n")
    else:
        for name, one in results.items():
            sys.stdout.write(f"{one.outcome:7}  {name:16} {one.detail}\n")
        sys.stdout.write(f"{ended}; {output / 'report.md'}\n")
    raise typer.Exit(0 if ended == "passed" else 1)


@parity_app.command("record")
def record_tape(
    base_url: Url,
    tape: Annotated[Path, typer.Argument(help="File to write.", show_default=False)],
    words: Annotated[str, typer.Option(help="Lengths of the prompts.")] = "20,200,1500",
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 64,
    timeout: Seconds = 3_600.0,
) -> None:
    """Write a tape: prompts, greedy tokens, the 20 likeliest tokens at each place."""
    from dsv4_rocm.validation.tape import prompts, record

    try:
        client = Client(base_url.rstrip("/").removesuffix("/v1"), timeout)
        made = record(client, client.model(), prompts(_lengths("--words", words)), tokens, _say)
        made.save(tape)
    except (RequestFailed, ValueError, OSError) as error:
        _stop(error)
    sys.stdout.write(f"{tape}: {len(made.takes)} prompts, {tokens} tokens each\n")


@parity_app.command("compare")
def compare_tape(
    base_url: Url,
    tape: Annotated[Path, typer.Argument(help="What `record` wrote.", show_default=False)],
    max_mean: Annotated[float, typer.Option(help="Mean divergence (KL, nats).")] = 0.01,
    max_one: Annotated[float, typer.Option(help="Divergence at one token.")] = 0.5,
    min_agreement: Annotated[float, typer.Option(help="Share of equal likeliest tokens, ties left out.")] = 0.99,
    tie: Annotated[float, typer.Option(help="Recorded margin below which a token counts as a tie.")] = 0.1,
    timeout: Seconds = 3_600.0,
    json: Json = False,
) -> None:
    """Compare a server with a tape. Status 1 if they are further apart than the bounds; says where first."""
    from dsv4_rocm.validation.parity import Bounds, compare
    from dsv4_rocm.validation.tape import Tape

    try:
        client = Client(base_url.rstrip("/").removesuffix("/v1"), timeout)
        found = compare(client, client.model(), Tape.read(tape), Bounds(max_mean, max_one, min_agreement, tie), _say)
    except (RequestFailed, ValueError, OSError) as error:
        _stop(error)
    if json:
        sys.stdout.write(json_module.dumps(found.as_json(), indent=2) + "\n")
    else:
        free = ", ".join(f"{name} {count}" for name, count in found.free.items())
        sys.stdout.write(
            f"{len(found.places)} places: mean divergence {found.mean:.6f}, largest {found.largest:.5f}, "
            f"agreement {found.agreement:.2%}\nequal tokens of a free run: {free}\n"
        )
        for problem in found.problems():
            sys.stdout.write(f"FAIL  {problem}\n")
    raise typer.Exit(1 if found.problems() else 0)


def _plan(
    served: dict[str, Any],
    url: str,
    recipe: str | None,
    needle: str | None,
    skip: list[str],
    limit: int | None,
    data: Path | None,
    tokenizer: str | None,
) -> tuple[list[Any], dict[str, Any]]:
    """Steps and what they are of."""
    from dsv4_rocm.validation.gsm8k import gsm8k
    from dsv4_rocm.validation.needle import ladder
    from dsv4_rocm.validation.probes import MODES, probes

    unknown = [part for part in skip if part not in PARTS]
    if unknown:
        raise ValueError(f"--skip must be of {', '.join(PARTS)}, got {', '.join(unknown)}")
    model, longest = str(served["id"]), int(served["max_model_len"])
    modes, lengths = tuple(MODES), tuple(length for length in NEEDLES if length <= longest)
    if recipe is not None:
        from dsv4_rocm.recipes import store

        wanted = store.get(recipe).validate_with
        modes, lengths = tuple(wanted.think), tuple(wanted.needle)
    if needle is not None:
        lengths = _lengths("--needle", needle)
    too_long = [length for length in lengths if length > longest]
    if too_long and "needle" not in skip:
        raise ValueError(f"the server takes {longest} tokens, and the ladder goes to {max(too_long)}; use --needle")
    steps = [] if "probes" in skip else probes(model, modes)
    steps += [] if "needle" in skip else ladder(model, lengths)
    steps += [] if "gsm8k" in skip else [gsm8k(model, limit, data, tokenizer)]
    about = {"model": model, "server": url, "context": longest, "recipe": recipe, "gsm8k questions": limit or "all"}
    return steps, about


def _run(client: Client, steps: list[Any], output: Path, about: dict[str, Any]) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import Progress

    from dsv4_rocm.validation.steps import run_steps

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("validating", total=len(steps))
        return run_steps(
            client,
            steps,
            output / "validation.json",
            about,
            lambda name, result: bar.update(task, advance=1, description=f"{name}: {result.outcome}"),
        )


def _lengths(flag: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"{flag} must be lengths like 2048,10000, got {text}")
    return tuple(int(part) for part in parts)


def _say(name: str) -> None:
    sys.stderr.write(f"  {name}\n")


def _stop(error: Exception) -> NoReturn:
    sys.stderr.write(f"dsv4-rocm: {error}\n")
    raise typer.Exit(2) from None
