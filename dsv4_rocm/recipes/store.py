"""Reads recipes/*.yaml: fragments put together by `extends`, and every error with its file, line and field."""

import functools
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import yaml
    from pydantic import ValidationError

    from dsv4_rocm.recipes.schema import Recipe
except ImportError as error:
    raise ImportError(
        f"recipes need PyYAML and pydantic, which every vLLM brings: {error}; pip install pyyaml pydantic"
    ) from error

CHECKOUT = Path(__file__).resolve().parents[2] / "recipes"
INSTALLED = "share/dsv4_rocm/recipes"
Position = tuple[Path, int]
_Path = tuple[str | int, ...]


class BadRecipe(ValueError):
    """A recipe file is wrong; the message begins with file:line: field."""


@dataclass(slots=True)
class _Entry:
    """One entry of a file: its own values, and where each was written."""

    values: dict[str, Any]
    positions: dict[_Path, Position]


def directory() -> Path:
    """The directory of the recipe files: of the checkout, else where the wheel put them.

    Raises:
        FileNotFoundError: neither is there.
    """
    if CHECKOUT.is_dir():
        return CHECKOUT
    for file in importlib.metadata.files("dsv4-rocm") or ():
        if file.suffix == ".yaml" and file.parent.as_posix().endswith(INSTALLED):
            return Path(str(file.locate())).resolve().parent
    raise FileNotFoundError("no recipe files: they are not installed with this package; name a --directory")


@functools.cache
def load(folder: Path | None = None) -> Mapping[str, Recipe]:
    """Every recipe of a directory by id, fragments (entries with `fragment: true`) left out.

    Args:
        folder: by default `directory()`.

    Raises:
        BadRecipe: naming file, line and field.
    """
    entries: dict[str, _Entry] = {}
    for path in sorted((folder or directory()).glob("*.yaml")):
        for name, entry in _read(path).items():
            if name in entries:
                raise _bad(entry.positions[()], name, f"is defined at {_at(entries[name].positions[()])} already")
            entries[name] = entry
    recipes = {}
    for name, entry in entries.items():
        if not entry.values.get("fragment", False):
            recipes[name] = _recipe(name, entries)
    _check_references(recipes, entries)
    return recipes


def get(name: str, folder: Path | None = None) -> Recipe:
    """One recipe.

    Raises:
        ValueError: no such recipe, or a file is wrong.
    """
    recipes = load(folder)
    if name not in recipes:
        raise ValueError(f"no recipe {name}; dsv4-rocm recipes list shows them")
    return recipes[name]


def _recipe(name: str, entries: dict[str, _Entry]) -> Recipe:
    whole = _merged(name, entries, ())
    for key in ("extends", "fragment"):
        whole.values.pop(key, None)
    try:
        return Recipe.model_validate({"id": name, **_given(whole.values)})
    except ValidationError as error:
        problems = [_problem(name, whole, item) for item in error.errors()]
        raise BadRecipe("\n".join(problems)) from None


def _problem(name: str, whole: _Entry, item: Any) -> str:
    location: _Path = tuple(part for part in item["loc"] if not _is_branch(part))
    position = whole.positions[()]
    for length in range(len(location), -1, -1):
        if location[:length] in whole.positions:
            position = whole.positions[location[:length]]
            break
    field = ".".join(map(str, (name, *location)))
    return f"{_at(position)}: {field}: {item['msg'].removeprefix('Value error, ')}"


def _is_branch(part: Any) -> bool:
    """Names that pydantic puts into a location for the members of a union."""
    return isinstance(part, str) and (part in ("bool", "int", "float", "str") or part.startswith(("list[", "dict[")))


def _merged(name: str, entries: dict[str, _Entry], above: tuple[str, ...]) -> _Entry:
    entry = entries[name]
    parents = entry.values.get("extends", [])
    values: dict[str, Any] = {}
    positions: dict[_Path, Position] = {}
    for parent in [parents] if isinstance(parents, str) else parents:
        where = entry.positions.get(("extends",), entry.positions[()])
        if parent not in entries:
            raise _bad(where, f"{name}.extends", f"there is no entry {parent}")
        if parent in (*above, name):
            raise _bad(where, f"{name}.extends", f"{parent} extends itself")
        base = _merged(parent, entries, (*above, name))
        values = _over(values, base.values)
        positions |= base.positions
    return _Entry(_over(values, entry.values), positions | entry.positions)


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: mappings are merged, null takes a key away, all else replaces."""
    result = {key: value for key, value in below.items() if key not in ("extends", "fragment")}
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _over(result[key], value)
        else:
            result[key] = value
    return result


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Without the keys that a null took away; until here it also stands for keys of fragments beside it."""
    return {key: _given(one) if isinstance(one, dict) else one for key, one in values.items() if one is not None}


def _check_references(recipes: dict[str, Recipe], entries: dict[str, _Entry]) -> None:
    for name, recipe in recipes.items():
        named = {"twin": [recipe.twin] if recipe.twin else [], "pair": recipe.pair.members if recipe.pair else []}
        for field, others in named.items():
            for other in others:
                if other not in recipes:
                    where = entries[name].positions.get((field,), entries[name].positions[()])
                    raise _bad(where, f"{name}.{field}", f"there is no recipe {other}")


def _read(path: Path) -> dict[str, _Entry]:
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _bad((path, mark.line + 1 if mark else 1), "YAML", error.problem or "cannot be read") from None
    if not isinstance(root, yaml.MappingNode):
        raise _bad((path, 1), "file", "expected a mapping of recipe ids")
    entries = {}
    for key, node in _pairs(path, root, ()):
        positions: dict[_Path, Position] = {(): (path, key.start_mark.line + 1)}
        values = _value(path, node, (), positions)
        if not isinstance(values, dict):
            raise _bad(positions[()], str(key.value), "expected a mapping of fields")
        entries[str(key.value)] = _Entry(values, positions)
    return entries


def _pairs(path: Path, node: Any, at: _Path) -> list[tuple[Any, Any]]:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if key.value in seen:
            field = ".".join(map(str, (*at, key.value)))
            raise _bad((path, line), field, f"is given twice, first in line {seen[key.value]}")
        seen[key.value] = line
    return list(node.value)


def _value(path: Path, node: Any, at: _Path, positions: dict[_Path, Position]) -> Any:
    positions.setdefault(at, (path, node.start_mark.line + 1))
    if isinstance(node, yaml.MappingNode):
        result = {}
        for key, value in _pairs(path, node, at):
            positions[(*at, key.value)] = (path, key.start_mark.line + 1)
            result[key.value] = _value(path, value, (*at, key.value), positions)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_value(path, value, (*at, index), positions) for index, value in enumerate(node.value)]
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    finally:
        loader.dispose()


def _at(position: Position) -> str:
    return f"{position[0].name}:{position[1]}"


def _bad(position: Position, field: str, problem: str) -> BadRecipe:
    return BadRecipe(f"{_at(position)}: {field}: {problem}")
