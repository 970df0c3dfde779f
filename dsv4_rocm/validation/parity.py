"""Compares a server with a tape: divergence of the distributions, agreement of the tokens, the first difference."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsv4_rocm.testing.client import Client
from dsv4_rocm.validation.tape import Take, Tape, divergence, greedy, score


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far two servers may be apart.

    Attributes:
        mean: mean divergence of a token's distribution, in nats.
        largest: divergence at any one token.
        agreement: share of places where both find the same token likeliest.
        tie: places where the recorded server preferred its token by less than this (log-probability) are not counted:
            rounding decides there.
    """

    mean: float = 0.01
    largest: float = 0.5
    agreement: float = 0.99
    tie: float = 0.1


@dataclass(frozen=True, slots=True)
class Place:
    """A token of the tape, and what both servers think there."""

    take: str
    position: int
    recorded: int
    other: int
    divergence: float
    margin: float

    def describe(self) -> str:
        return (
            f"{self.take}, token {self.position}: recorded {self.recorded}, here {self.other} "
            f"(divergence {self.divergence:.4f}, recorded margin {self.margin:.4f})"
        )


@dataclass(frozen=True, slots=True)
class Parity:
    """The outcome.

    Attributes:
        places: every token of the tape.
        free: by take, the tokens that a free greedy run says alike before the first other one.
        bounds: what was asked.
    """

    places: tuple[Place, ...]
    free: dict[str, int]
    bounds: Bounds

    @property
    def mean(self) -> float:
        return sum(place.divergence for place in self.places) / len(self.places)

    @property
    def largest(self) -> float:
        return max(place.divergence for place in self.places)

    @property
    def agreement(self) -> float:
        sure = [place for place in self.places if place.margin >= self.bounds.tie]
        return sum(place.recorded == place.other for place in sure) / len(sure) if sure else 1.0

    @property
    def first(self) -> Place | None:
        """The first place that no rounding explains: another likeliest token that was no tie, or a large divergence."""
        return next((place for place in self.places if self._apart(place)), None)

    def _apart(self, place: Place) -> bool:
        changed = place.recorded != place.other and place.margin >= self.bounds.tie
        return changed or place.divergence > self.bounds.largest

    def problems(self) -> list[str]:
        """Bounds that do not hold; empty when the servers agree."""
        found = []
        if self.mean > self.bounds.mean:
            found.append(f"mean divergence {self.mean:.5f} is above {self.bounds.mean}")
        if self.largest > self.bounds.largest:
            found.append(f"largest divergence {self.largest:.4f} is above {self.bounds.largest}")
        if self.agreement < self.bounds.agreement:
            found.append(
                f"likeliest tokens agree at {self.agreement:.1%} of the places, below {self.bounds.agreement:.1%}"
            )
        if found:
            worst = self.first or max(self.places, key=lambda place: place.divergence)
            found.append(f"first divergence: {worst.describe()}")
        return found

    def as_json(self) -> dict[str, Any]:
        """Figures and problems as plain values."""
        return {
            "ok": not self.problems(),
            "problems": self.problems(),
            "places": len(self.places),
            "mean_divergence": self.mean,
            "largest_divergence": self.largest,
            "agreement": self.agreement,
            "equal_tokens_of_a_free_run": self.free,
        }


def compare(
    client: Client, model: str, tape: Tape, bounds: Bounds, progress: Callable[[str], None] = lambda name: None
) -> Parity:
    """Score the tape's texts on a server, and let it continue the prompts by itself.

    Args:
        client: the server.
        model: the name the server gives it; the tape's may differ.
        tape: what another server said.
        bounds: how far apart they may be.
        progress: called after each prompt.

    Raises:
        ValueError: the tape is empty.
    """
    if not any(take.tokens for take in tape.takes):
        raise ValueError("the tape holds no token; record it with more")
    places: list[Place] = []
    free = {}
    for take in tape.takes:
        places += _places(take, score(client, model, take.prompt, take.tokens))
        _, said = greedy(client, model, take.prompt, len(take.tokens))
        same = (one == other for one, other in zip(take.tokens, said, strict=True))
        free[take.name] = next((at for at, equal in enumerate(same) if not equal), len(take.tokens))
        progress(take.name)
    return Parity(tuple(places), free, bounds)


def _places(take: Take, other: tuple[dict[int, float], ...]) -> list[Place]:
    found = []
    for position, (mine, theirs) in enumerate(zip(take.top, other, strict=True)):
        best, second = sorted(mine, key=lambda token: -mine[token])[:2]
        likeliest = max(theirs, key=lambda token: theirs[token])
        found.append(Place(take.name, position, best, likeliest, divergence(mine, theirs), mine[best] - mine[second]))
    return found
