"""The needle ladder: one fact in a text of a given length, asked for. GSM8K cannot see the indexer, this can.

The indexer discards nothing below 2,048 (Flash) or 4,096 (Pro) tokens, so only longer rungs test it.
"""

import random
from collections.abc import Iterator

from dsv4_rocm.testing.client import Client
from dsv4_rocm.validation.steps import Result, Step, require

DEPTHS = (0.1, 0.5, 0.9)
QUESTION = "\n\nWhat is the number of the {name} lamp? Answer with the number only."
_NAMES = ("amber", "brass", "copper", "crimson", "indigo", "ivory", "olive", "silver", "teal", "violet")
_WHO = ("The old ferryman", "A gardener", "The night guard", "Her cousin", "The baker", "A tired clerk", "The captain")
_DID = ("painted", "carried", "mended", "counted", "sold", "washed", "forgot", "measured", "borrowed", "moved")
_WHAT = (
    "a wooden bench",
    "seven crates",
    "the harbour gate",
    "an iron kettle",
    "some lamps",
    "a long rope",
    "the boat",
)
_WHEN = ("before dawn", "after the rain", "on a market day", "in late autumn", "while it snowed", "twice a week")


def sentences(seed: int) -> Iterator[str]:
    """Plain sentences without end; equal seeds give equal text."""
    choose = random.Random(seed).choice
    while True:
        yield f"{choose(_WHO)} {choose(_DID)} {choose(_WHAT)} {choose(_WHEN)}."


def needle(seed: int) -> tuple[str, str]:
    """Name and number of the lamp that a seed hides."""
    chosen = random.Random(seed * 31 + 7)
    return chosen.choice(_NAMES), str(chosen.randrange(10_000, 100_000))


def haystack(client: Client, model: str, length: int, depth: float, seed: int) -> tuple[str, str, int]:
    """A prompt of at most `length` tokens with a needle at a share `depth` of it.

    Returns: the prompt, the number to find, and the tokens the prompt takes.
    """
    name, number = needle(seed)
    fact, question = f"The number of the {name} lamp is {number}.", QUESTION.format(name=name)
    source = sentences(seed)
    text = [next(source) for _ in range(40)]
    per_sentence = tokens_of(client, model, " ".join(text)) / len(text)
    room = length - tokens_of(client, model, fact + question)
    wanted = max(int(room / per_sentence), 1)
    while True:
        text += [next(source) for _ in range(wanted - len(text))]
        kept = text[:wanted]
        kept.insert(int(depth * len(kept)), fact)
        prompt = " ".join(kept) + question
        tokens = tokens_of(client, model, prompt)
        if tokens <= length or wanted == 1:
            return prompt, number, tokens
        wanted -= max(int((tokens - length) / per_sentence), 1)


def tokens_of(client: Client, model: str, text: str) -> int:
    """How many tokens the server makes of a text."""
    answer = client.post("/tokenize", {"model": model, "prompt": text})
    return int(answer["count"])


def ladder(model: str, lengths: tuple[int, ...], depths: tuple[float, ...] = DEPTHS) -> list[Step]:
    """One step per length and depth."""
    return [
        Step(f"needle/{length}/{depth:g}", _Rung(model, length, depth, seed))
        for seed, (length, depth) in enumerate((length, depth) for length in lengths for depth in depths)
    ]


class _Rung:
    """Asks for one needle."""

    def __init__(self, model: str, length: int, depth: float, seed: int) -> None:
        self.model, self.length, self.depth, self.seed = model, length, depth, seed

    def __call__(self, client: Client) -> Result:
        template_room = 64  # the chat template and the answer
        prompt, number, tokens = haystack(client, self.model, self.length - template_room, self.depth, self.seed)
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 16,
            "temperature": 0,
            "chat_template_kwargs": {"thinking": False},
        }
        answer = client.post("/v1/chat/completions", body)
        said = answer["choices"][0]["message"]["content"] or ""
        where = f"{tokens} tokens, depth {self.depth:g}"
        require(number in said, f"{where}: expected {number}, got {said.strip()[:60]!r}")
        return Result("pass", f"{where}: {number}", {"tokens": tokens})
