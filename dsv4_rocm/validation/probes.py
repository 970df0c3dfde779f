"""Short probes: think modes, a tool call, streaming, the same prompt twice."""

import json
from collections.abc import Callable
from typing import Any

from dsv4_rocm.testing.client import Client
from dsv4_rocm.validation.steps import Failed, Result, Step, require

MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Tokyo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
MODES: dict[str, dict[str, Any]] = {
    "non-think": {"thinking": False},
    "high": {"thinking": True, "reasoning_effort": "high"},
    "max": {"thinking": True, "reasoning_effort": "max"},
}
REPEATED = "The same prompt is sent twice, and the second time its blocks come from the prefix cache. " * 24


def probes(model: str, modes: tuple[str, ...]) -> list[Step]:
    """The steps for a model.

    Args:
        model: the name the server gives it.
        modes: think modes to probe, of `MODES`.
    """
    found = [Step(f"think/{mode}", _with(model, _think, mode)) for mode in modes]
    found.append(Step("tool-call", _with(model, _tool_call)))
    found.append(Step("stream", _with(model, _stream)))
    found.append(Step("prefix", _with(model, _prefix)))
    return found


def _with(model: str, probe: Callable[..., Result], *extra: str) -> Callable[[Client], Result]:
    return lambda client: probe(client, model, *extra)


def _chat(client: Client, model: str, template: dict[str, Any], **more: Any) -> Any:
    body = {"model": model, "messages": MESSAGES, "max_tokens": 48, "temperature": 0, "chat_template_kwargs": template}
    return client.post("/v1/chat/completions", body | more)


def _think(client: Client, model: str, mode: str) -> Result:
    answer = _chat(client, model, MODES[mode])
    message, tokens = answer["choices"][0]["message"], answer["usage"]["prompt_tokens"]
    thinking = MODES[mode]["thinking"]
    part, other = ("reasoning", "content") if thinking else ("content", "reasoning")
    require(message.get(part), f"a {mode} answer without {part}; is --reasoning-parser deepseek_v4 set?")
    if not thinking:
        require(not message.get(other), f"a {mode} answer with {other}")
    if mode == "high":
        default = _chat(client, model, {})["usage"]["prompt_tokens"]
        require(default == tokens, f"thinking is not the default: a prompt of {default} tokens, with high {tokens}")
    if mode == "max":
        high = _chat(client, model, MODES["high"], max_tokens=1)["usage"]["prompt_tokens"]
        require(tokens > high, f"Think Max has the prompt of Think High ({tokens} tokens)")
    return Result("pass", f"{part} in a prompt of {tokens} tokens", {"prompt_tokens": tokens})


def _tool_call(client: Client, model: str) -> Result:
    answer = _chat(client, model, MODES["non-think"], tools=[TOOL], tool_choice="required", max_tokens=256)
    calls = answer["choices"][0]["message"].get("tool_calls")
    require(calls, "no tool call, though one is required")
    call = calls[0]["function"]
    try:
        arguments = json.loads(call["arguments"])
    except ValueError:
        raise Failed(f"arguments that are no JSON: {call['arguments'][:60]!r}") from None
    good = call["name"] == "get_weather" and arguments.get("city") in ("Paris", "Tokyo")
    require(good, f"a call outside its schema: {call['name']}({call['arguments'][:60]})")
    return Result("pass", f"{call['name']}({call['arguments']})")


def _stream(client: Client, model: str) -> Result:
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
    whole = client.post("/v1/completions", body)["choices"][0]["text"]
    with client.stream("/v1/completions", body) as events:
        pieces = [event["choices"][0]["text"] for event in events if event["choices"]]
    require(len(pieces) > 1, f"a streamed answer in {len(pieces)} piece")
    require("".join(pieces) == whole, f"streamed {''.join(pieces)[:60]!r}, whole {whole[:60]!r}")
    return Result("pass", f"{len(pieces)} pieces equal the whole answer")


def _prefix(client: Client, model: str) -> Result:
    body = {"model": model, "prompt": REPEATED, "max_tokens": 24, "temperature": 0, "return_token_ids": True}
    hits = _prefix_hits(client)
    cold, warm = (client.post("/v1/completions", body)["choices"][0]["token_ids"] for _ in range(2))
    first = next((at for at, (one, other) in enumerate(zip(cold, warm, strict=False)) if one != other), None)
    require(cold == warm, f"the second answer differs from token {first} on: {warm[:8]} instead of {cold[:8]}")
    cached = _prefix_hits(client) - hits
    return Result("pass", f"{len(cold)} equal tokens, {cached:.0f} of the prompt from the cache", {"cached": cached})


def _prefix_hits(client: Client) -> float:
    lines = [line for line in client.text("/metrics").splitlines() if line.startswith("vllm:prefix_cache_hits_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
