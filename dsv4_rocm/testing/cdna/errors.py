"""What the emulator raises: an unusable program, or a finding the hardware would punish."""

from __future__ import annotations


class EmulationError(RuntimeError):
    """The program cannot be run as given: unknown instruction, bad operand, endless loop, too much LDS."""


class Finding(EmulationError):
    """Something real hardware would answer with a wrong number or a fault.

    Attributes:
        kind: "wait", "hazard", "race", "uninitialised", "bounds" or "alignment".
        lane: lane of the workgroup (wave * 64 + lane) the finding was made on, or None.
    """

    def __init__(self, kind: str, message: str, lane: int | None = None, at: str = "") -> None:
        super().__init__(message)
        self.at = at  # the instruction, where the one being executed is not it
        self.kind = kind
        self.message = message
        self.lane = lane


def located(error: EmulationError, place: str, instruction: str) -> EmulationError:
    """The same error with its place (workgroup, wave, lane, source line, instruction) in the message."""
    if isinstance(error, Finding):
        lane = "" if error.lane is None else f"lane {error.lane % 64} of wave {error.lane // 64}, "
        text = f"[{error.kind}] {error.message} | {lane}{place} at {error.at or instruction}"
        return Finding(error.kind, text, error.lane, error.at)
    return EmulationError(f"{error} | {place} at {instruction}")
