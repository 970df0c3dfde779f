"""Recipes of the same serving mode on two vendors: what may differ between them."""

from typing import Any

from dsv4_rocm.recipes.schema import Recipe

# Who they are, the machine, and the switches that only one vendor has.
ALLOWED = (
    *("id", "title", "twin", "status", "notes", "hardware", "memory.requests", "pair.members"),
    *("env.VLLM_ROCM_USE_AITER", "requires.aiter", "requires.packages"),
    *("env.CUDA_VISIBLE_DEVICES", "env.HIP_VISIBLE_DEVICES"),
)


def differences(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """Fields that differ, by dotted name, with both values (None where one lacks the field)."""
    left, right = (_flat(recipe.model_dump(mode="json", by_alias=True)) for recipe in (one, other))
    names = [*left, *(name for name in right if name not in left)]
    return {name: (left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)}


def forbidden(one: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """Differences between twins that are not in `ALLOWED`, and visible devices that are not the same ones."""
    found = {name: values for name, values in differences(one, other).items() if not _allowed(name)}
    devices = [_devices(recipe) for recipe in (one, other)]
    return found if devices[0] == devices[1] else found | {"visible devices": (devices[0], devices[1])}


def _devices(recipe: Recipe) -> str | None:
    return next((value for name, value in recipe.env.items() if name.endswith("VISIBLE_DEVICES")), None)


def _allowed(name: str) -> bool:
    return any(name == allowed or name.startswith(allowed + ".") for allowed in ALLOWED)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            flat[prefix + key] = value
    return flat
