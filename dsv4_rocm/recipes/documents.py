"""docs/recipes.md and the README's list from the YAML: `python -m dsv4_rocm.recipes.documents` (`make docs`)."""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from dsv4_rocm.recipes import store
from dsv4_rocm.recipes.check import members
from dsv4_rocm.recipes.command import commands
from dsv4_rocm.recipes.schema import Recipe

BEGIN = "<!-- recipes: written by `make docs` -->"
END = "<!-- end of recipes -->"
_INTRO = """# Recipes

Written from `recipes/*.yaml` by `make docs`; edit those. A recipe is data, never a shell string: `dsv4-rocm recipes
render ID` makes the command, `check ID` asks the installed vLLM's parser, serve plan, lint and planner about it.

| status | meaning |
|---|---|
| verified | run on this hardware; the evidence names the report. There is none yet |
| derived | parser, serve plan (on a simulated architecture) and planner accept it; not run on the hardware |
| unsupported | refused, with the reason; kept so that the refusal is tested |

| command | what it does |
|---|---|
| `dsv4-rocm recipes list`, `show ID` | what there is, and everything one recipe says |
| `dsv4-rocm recipes render ID --as bash` | the commands; also `argv`, `docker`, `k8s`, `env` |
| `dsv4-rocm recipes check ID`, `--all` | parser, serve plan, lint, planner; status 1 on errors (`--strict`: warnings) |
| `dsv4-rocm recipes plan ID` | the memory plan; status 1 if it does not fit, with the largest context that does |
| `dsv4-rocm recipes pair ID` | ports, roles, devices and router of servers that work together |
| `dsv4-rocm recipes diff A B` | fields that differ |
| `dsv4-rocm recipes lint-command -- vllm serve ...` | what a pasted command will do; `--gpu`, `--gpus`, `--file` |

`--json` gives every answer to a script. `--vllm-source DIR` asks an unpacked vLLM release instead of the installed one.
None of them needs a network, a GPU or weights. A wrong name, a wrong file or a missing vLLM ends with status 2.

Clients send temperature 1.0 and top_p 1.0 (agents 0.95). Thinking is on unless a request says `{"thinking": false}`;
Think Max needs 393,216 tokens of context."""


def render() -> str:
    """docs/recipes.md."""
    recipes = store.load()
    sections = [_INTRO, "## All of them", _table(recipes.values())]
    sections += [_section(recipe, members(recipe, recipes)) for recipe in recipes.values() if not _is_member(recipe)]
    return "\n\n".join(sections) + "\n"


def readme_section() -> str:
    """The README's list: the recipes that serve on their own, one line per kind of GPU."""
    recipes = [recipe for recipe in store.load().values() if not _is_member(recipe)]
    served = [recipe for recipe in recipes if recipe.status.level != "unsupported"]
    verified = sum(recipe.status.level == "verified" for recipe in served)
    text = (
        f"{len(served)} recipes, accepted by parser, serve plan and planner; {verified} run on their hardware.\n"
        f"{len(recipes) - len(served)} more are kept as refusals. Commands: [docs/recipes.md](docs/recipes.md)."
    )
    products = dict.fromkeys(recipe.hardware.product for recipe in served)
    rows = ["| GPUs | recipes |", "|---|---|"]
    for product in products:
        names = " ".join(f"`{recipe.id}`" for recipe in served if recipe.hardware.product == product)
        rows.append(f"| {product} | {names} |")
    return "\n".join([text, "", *rows])


def with_readme_section(readme: str) -> str:
    """README text with the list between its two markers replaced.

    Raises:
        ValueError: a marker is missing.
    """
    if BEGIN not in readme or END not in readme:
        raise ValueError(f"README.md must hold {BEGIN} and {END}")
    pattern = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n{readme_section()}\n{END}", readme)


FILES: dict[str, Callable[[Path], str]] = {
    "docs/recipes.md": lambda _: render(),
    "README.md": lambda path: with_readme_section(path.read_text(encoding="utf-8")),
}


def stale(root: Path) -> list[str]:
    """Files below `root` that do not say what the recipes say."""
    found = []
    for name, make in FILES.items():
        path = root / name
        if not path.is_file() or path.read_text(encoding="utf-8") != make(path):
            found.append(name)
    return found


def _is_member(recipe: Recipe) -> bool:
    return recipe.role != "standalone" and recipe.status.level != "unsupported"


def _table(recipes: Iterable[Recipe]) -> str:
    rows = ["| recipe | what | status |", "|---|---|---|"]
    for recipe in recipes:
        name = f"[`{recipe.id}`](#{recipe.id})" if not _is_member(recipe) else f"`{recipe.id}`"
        rows.append(f"| {name} | {recipe.title} | {recipe.status.level} |")
    return "\n".join(rows)


def _section(recipe: Recipe, servers: list[Recipe]) -> str:
    hardware = recipe.hardware
    nodes = f" on each of {hardware.nodes} machines" if hardware.nodes > 1 else ""
    lines = [
        f"## {recipe.id}",
        "",
        f"{recipe.title}. {hardware.gpus} x {hardware.product} ({hardware.arch}){nodes}.",
        "",
    ]
    status = recipe.status
    lines.append(f"Status: {status.level} ({status.date}){f', {status.reason}' if status.reason else ''}.")
    if status.level != "unsupported":
        lines += [f"- {item}" for item in status.evidence]
    if recipe.memory.context:
        requests = f", {recipe.memory.requests:g} at once" if recipe.memory.requests else ""
        lines.append(f"- planned for requests of {recipe.memory.context:,} tokens{requests}")
    lines += [f"- {note}" for note in recipe.notes]
    if recipe.twin:
        lines.append(f"- the same on the other vendor: {recipe.twin}")
    for command in commands(recipe, servers):
        lines += ["", "```bash", command.bash(), "```"]
    return "\n".join(lines)


if __name__ == "__main__":
    for written in stale(Path.cwd()):
        target = Path.cwd() / written
        target.write_text(FILES[written](target), encoding="utf-8")
        sys.stdout.write(f"{written}\n")
