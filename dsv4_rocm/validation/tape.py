"""A tape of a server: prompts, its greedy tokens, and the 20 likeliest tokens at each of them."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dsv4_rocm.testing.client import Client
from dsv4_rocm.validation.needle import sentences

FORMAT = 1
TOP = 20  # log-probabilities that vLLM gives by default


@dataclass(frozen=True, slots=True)
class Take:
    """One prompt on the tape.

    Attributes:
        name: of the prompt.
        prompt: its token ids.
        tokens: greedy continuation.
        top: log-probability by token id, for each token of the continuation, scored with the whole text in one prompt.
    """

    name: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    top: tuple[dict[int, float], ...]


@dataclass(frozen=True, slots=True)
class Tape:
    """What was recorded from a model."""

    model: str
    takes: tuple[Take, ...]

    def save(self, path: Path) -> None:
        """Write JSON."""
        content = {"format": FORMAT, "model": self.model, "takes": [asdict(take) for take in self.takes]}
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Tape":
        """Read what `save` wrote.

        Raises:
            ValueError: the file is something else.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"{path} has format {content['format']}, this version reads {FORMAT}; record it again")
            takes = tuple(
                Take(
                    one["name"],
                    tuple(one["prompt"]),
                    tuple(one["tokens"]),
                    tuple({int(token): value for token, value in at.items()} for at in one["top"]),
                )
                for one in content["takes"]
            )
            return cls(content["model"], takes)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError):
            raise ValueError(f"{path} is no tape; record one with dsv4-rocm parity record") from None


def prompts(lengths: Sequence[int]) -> dict[str, str]:
    """Texts of about so many words, each with a beginning of its own."""
    found = {}
    for seed, length in enumerate(lengths):
        text = " ".join(islice(sentences(1000 + seed), length // 6 + 1))
        found[f"{length}-words"] = " ".join(text.split()[:length])
    return found


def record(
    client: Client, model: str, texts: dict[str, str], tokens: int, progress: Callable[[str], None] = lambda name: None
) -> Tape:
    """Record a tape.

    Args:
        client: the server.
        model: the name the server gives it.
        texts: prompts by name.
        tokens: length of each continuation.
        progress: called after each prompt.
    """
    takes = []
    for name, text in texts.items():
        prompt, said = greedy(client, model, text, tokens)
        takes.append(Take(name, prompt, said, score(client, model, prompt, said)))
        progress(name)
    return Tape(model, tuple(takes))


def greedy(
    client: Client, model: str, prompt: str | Sequence[int], tokens: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Token ids of the prompt and of its greedy continuation, which never ends early."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    (choice,) = client.post("/v1/completions", body | {"return_token_ids": True})["choices"]
    return tuple(choice["prompt_token_ids"]), tuple(choice["token_ids"])


def score(client: Client, model: str, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[dict[int, float], ...]:
    """The likeliest tokens at each place of a given continuation, whatever the server would have said itself."""
    body = {"model": model, "prompt": [*prompt, *tokens], "max_tokens": 1, "temperature": 0, "prompt_logprobs": TOP}
    (choice,) = client.post("/v1/completions", body)["choices"]
    rows: list[dict[str, Any]] = choice["prompt_logprobs"][len(prompt) :]
    return tuple({int(token): float(one["logprob"]) for token, one in row.items()} for row in rows)


def divergence(recorded: dict[int, float], other: dict[int, float]) -> float:
    """KL(recorded || other) over the recorded tokens and one class for all the rest, in nats.

    A token that the other did not report is taken to have the other's least likely reported one, so that the figure is
    too small rather than too large.
    """
    floor = min(other.values())
    total, mass, rest = 0.0, 0.0, 0.0
    for token, value in recorded.items():
        theirs = other.get(token, floor)
        total += math.exp(value) * (value - theirs)
        mass += math.exp(value)
        rest += math.exp(theirs)
    left, right = max(1 - mass, 1e-12), max(1 - rest, 1e-12)
    return max(total + left * math.log(left / right), 0.0)
