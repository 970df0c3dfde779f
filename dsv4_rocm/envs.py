"""Every DSV4_ROCM_* environment variable: the only place that reads them."""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

PREFIX = "DSV4_ROCM_"
IMPL_PREFIX = PREFIX + "IMPL_"
DEFAULT_KFD_ROOT = Path("/sys/class/kfd/kfd/topology")
EMULATED = ("gfx942", "gfx950")
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable as a user sees it; `name` ending in `<OP>` stands for one variable per operation."""

    name: str
    default: str
    meaning: str


VARIABLES = (
    Variable("DSV4_ROCM_KFD_ROOT", str(DEFAULT_KFD_ROOT), "KFD topology tree the AMD probe reads (tests, containers)"),
    Variable("DSV4_ROCM_IMPL_<OP>", "", "implementation to use for one operation; it is used or the start fails"),
    Variable(
        "DSV4_ROCM_KERNELS", "", "emulated:gfx942 or emulated:gfx950: a host runs that GPU's kernels, emulated (slow)"
    ),
    Variable("DSV4_ROCM_ALLOW_UNTESTED", "0", "1: go on with a vLLM that lacks names we use"),
)


def kfd_root() -> Path:
    """The KFD topology directory (the one that holds `nodes/`)."""
    return Path(os.environ.get("DSV4_ROCM_KFD_ROOT") or DEFAULT_KFD_ROOT)


def forced_impl(op: str) -> str | None:
    """The implementation the user forces for `op` (`DSV4_ROCM_IMPL_SPARSE_ATTENTION=reference`), or None."""
    return os.environ.get(impl_variable(op)) or None


def impl_variable(op: str) -> str:
    """The name of the variable that forces an implementation of `op`."""
    return IMPL_PREFIX + op.upper()


def emulated_arch() -> str | None:
    """The architecture whose kernels a host emulates (`DSV4_ROCM_KERNELS=emulated:gfx942`), or None.

    Raises:
        ValueError: the variable holds something else.
    """
    value = os.environ.get("DSV4_ROCM_KERNELS") or None
    if value is None:
        return None
    kind, _, name = value.partition(":")
    if kind != "emulated" or name not in EMULATED:
        known = " or ".join(f"emulated:{arch}" for arch in EMULATED)
        raise ValueError(f"DSV4_ROCM_KERNELS must be {known}, got {value}")
    return name


def allow_untested() -> bool:
    """Whether to go on with a vLLM that lacks symbols we use.

    Raises:
        ValueError: the variable holds neither a yes nor a no.
    """
    return _flag("DSV4_ROCM_ALLOW_UNTESTED")


def unknown(ops: tuple[str, ...] = ()) -> list[str]:
    """One message for every DSV4_ROCM_* name in the environment that nothing reads.

    Args:
        ops: the operations that exist; with them, `DSV4_ROCM_IMPL_<OP>` is checked too.
    """
    fixed = [v.name for v in VARIABLES if "<" not in v.name]
    impls = [impl_variable(op) for op in ops]
    messages = []
    for name in sorted(os.environ):
        if not name.startswith(PREFIX) or name in fixed or name in impls:
            continue
        if name.startswith(IMPL_PREFIX) and not ops:
            continue
        close = _close(name, fixed + impls)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(v.name for v in VARIABLES)}"
        messages.append(f"{name} is set but nothing reads it; {hint}")
    return messages


def _close(name: str, known: list[str]) -> list[str]:
    # Without the common prefix, which would make every name close to every other.
    short = {candidate.removeprefix(PREFIX): candidate for candidate in known}
    return [short[match] for match in difflib.get_close_matches(name.removeprefix(PREFIX), short, n=2)]


def _flag(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value in _TRUE or value in _FALSE:
        return value in _TRUE
    raise ValueError(f"{name} must be 0 or 1, got {value!r}")
