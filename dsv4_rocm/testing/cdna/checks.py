"""Which findings a device looks for; all of them unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass

NAMES = ("waits", "barriers", "hazards", "races", "uninitialised")


@dataclass(frozen=True)
class Checks:
    """One switch a kind of finding; bounds and alignment are always checked.

    waits: registers used before their load was waited for. barriers: LDS writes not waited for at a barrier. hazards:
    wait states left to s_nop. races: LDS and global memory inside a workgroup. uninitialised: undefined values that
    reach a store, an address or a branch.
    """

    waits: bool = True
    barriers: bool = True
    hazards: bool = True
    races: bool = True
    uninitialised: bool = True

    @classmethod
    def of(cls, names: str) -> Checks:
        """ "all", "none", or names separated by commas."""
        chosen = NAMES if names == "all" else () if names == "none" else tuple(n.strip() for n in names.split(","))
        unknown = set(chosen) - set(NAMES)
        if unknown:
            raise ValueError(
                f"checks must be all, none or some of {', '.join(NAMES)}; got {', '.join(sorted(unknown))}"
            )
        return cls(**{name: name in chosen for name in NAMES})
