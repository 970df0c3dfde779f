"""`dsv4-rocm demo`: a tiny checkpoint, a real `vllm serve` through our plugin, and one request of each kind."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dsv4_rocm.testing.client import Client, RequestFailed
from dsv4_rocm.testing.server import Progress, ServerFailed, VllmServer
from dsv4_rocm.testing.server_log import blocks_of, groups_of, lines_of, message_of, ops_of
from dsv4_rocm.testing.tiny_config import DEMO

SERVE_FLAGS = (
    "--trust-remote-code --kv-cache-dtype fp8 --block-size 256 --tokenizer-mode deepseek_v4 "
    "--reasoning-parser deepseek_v4 --tool-call-parser deepseek_v4 --enable-auto-tool-choice --max-model-len 4096"
)
SERVED_NAME = "dsv4-tiny"
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
THINK_MODES: dict[str, dict[str, Any]] = {
    "Non-think": {"thinking": False},
    "Think High": {"thinking": True, "reasoning_effort": "high"},
    "Think Max": {"thinking": True, "reasoning_effort": "max"},
}
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "strict": True,  # the answer must follow the schema: random weights would not
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Tokyo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class DemoFailed(RuntimeError):
    """An answer was not what it must be, or the server failed; the message says which, with the end of the log."""


def run(console: Console, log: Path | None = None) -> None:
    """Run the whole demo.

    Args:
        console: where the report goes.
        log: file that keeps the server's log; None: a temporary one.

    Raises:
        DemoFailed: anything that must work did not.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dsv4-rocm-demo-") as scratch:
        checkpoint = _make_checkpoint(console, Path(scratch) / "checkpoint")
        arguments = [*SERVE_FLAGS.split(), "--served-model-name", SERVED_NAME]
        console.print(f"[bold]Server[/] vllm serve {checkpoint} {SERVE_FLAGS}", soft_wrap=True, highlight=False)
        with _waiting(console) as progress:
            server = VllmServer(checkpoint, arguments, log=log or Path(scratch) / "server.log", progress=progress)
            try:
                server.start()
            except ServerFailed as error:
                raise DemoFailed(str(error)) from error
        with server:
            console.print(f"  ready after {server.start_seconds:.0f} s")
            try:
                _show_plan(console, server, checkpoint)
                _show_answers(console, Client(server.url))
            except (DemoFailed, RequestFailed) as error:
                raise DemoFailed(f"{error}\nend of the server's log:\n{server.log_tail()}") from error
            status = server.stop()
    if status != 0:
        raise DemoFailed(f"vllm serve did not stop cleanly: exit status {status}")
    console.print(f"[green]Server stopped cleanly.[/] The demo took {time.monotonic() - begin:.0f} s.")


def platform_class() -> str:
    """The platform class our plugin gives vLLM on this machine, asked as vLLM asks.

    Raises:
        DemoFailed: the plugin is not installed, or steps back here.
    """
    points = entry_points(group="vllm.platform_plugins", name="dsv4_rocm")
    if not points:
        raise DemoFailed("the vLLM plugin dsv4_rocm is not installed in this environment; run make setup")
    (point,) = points
    name = point.load()()
    if name is None:
        raise DemoFailed("the plugin dsv4_rocm steps back on this machine; dsv4-rocm doctor says why")
    return str(name)


def _make_checkpoint(console: Console, directory: Path) -> Path:
    from dsv4_rocm.testing.tiny_checkpoint import write_checkpoint

    write_checkpoint(directory, DEMO, "fp8")
    size = sum(path.stat().st_size for path in directory.iterdir()) / 2**20
    layers = ", ".join(str(ratio) for ratio in DEMO.compress_ratios)
    console.print(
        f"[bold]Checkpoint[/] {size:.0f} MiB of random weights: FP8 linears, FP4 experts; "
        f"compress ratios {layers} + 1 MTP layer",
        highlight=False,
        soft_wrap=True,
    )
    return directory


def _show_plan(console: Console, server: VllmServer, checkpoint: Path) -> None:
    log = server.log_text()
    console.print(f"[bold]Platform[/] {platform_class()}", highlight=False)
    for line in lines_of(log, "serve plan: "):
        console.print(f"  serve plan: {line}", highlight=False)
    ops = ops_of(log)
    if not ops:
        raise DemoFailed("the server's log has no table of dsv4_rocm ops: our model did not serve")
    table = Table("op", "implementation", title="Choice per op", title_justify="left")
    for op, choice in ops.items():
        table.add_row(op, choice)
    console.print(table)
    console.print(_cache_table(checkpoint))
    console.print(
        f"  groups of {', '.join(map(str, groups_of(log)))} tokens per page; {blocks_of(Client(server.url)):,} blocks",
        highlight=False,
    )


def _cache_table(checkpoint: Path) -> Table:
    from dsv4_rocm.cache.layout import Encoding
    from dsv4_rocm.cache.specs import CacheEncodings, model_caches
    from dsv4_rocm.model_spec import ModelSpec

    caches = model_caches(ModelSpec.from_directory(checkpoint), CacheEncodings(Encoding.FP8, Encoding.FP8))
    table = Table("cache", "layers", "tokens per page", "rows", "bytes", title="KV plan", title_justify="left")
    for layout in dict.fromkeys(caches.values()):
        count = sum(other == layout for other in caches.values())
        sizes = (count, layout.tokens_per_page, layout.rows_per_page, f"{layout.padded_page_bytes:,}")
        table.add_row(layout.kind.value, *map(str, sizes))
    return table


def _show_answers(console: Console, client: Client) -> None:
    steps: dict[str, Callable[[Client], str]] = {"Completion": _completion}
    steps |= {f"Chat, {name}": _chat(name) for name in THINK_MODES}
    steps |= {"Tool call": _tool_call, "Streamed answer": _streamed}
    console.print("[bold]Answers[/] (the weights are random, so the words mean nothing)", highlight=False)
    for name, step in steps.items():
        begin = time.monotonic()
        text = step(client).replace("\n", " ")
        console.print(
            f"  {name:<16} {time.monotonic() - begin:5.1f} s  {text}", markup=False, highlight=False, soft_wrap=True
        )


def _completion(client: Client) -> str:
    prompt = "The weather in the morning"
    answer = client.post(
        "/v1/completions", {"model": SERVED_NAME, "prompt": prompt, "max_tokens": 16, "temperature": 0}
    )
    text: str = answer["choices"][0]["text"]
    _require(answer["usage"]["completion_tokens"] > 0, f"a completion with no token: {answer}")
    return f"{prompt} ...{text}"


def _chat(mode: str) -> Callable[[Client], str]:
    def ask(client: Client) -> str:
        answer = client.post("/v1/chat/completions", _chat_body(24, THINK_MODES[mode]))
        message = answer["choices"][0]["message"]
        part = "reasoning" if THINK_MODES[mode]["thinking"] else "content"
        _require(bool(message[part]), f"a {mode} answer without {part}: {message}")
        return f"{part}: {message[part]}"

    return ask


def _tool_call(client: Client) -> str:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    body = _chat_body(256, THINK_MODES["Non-think"]) | {"tools": [WEATHER_TOOL], "tool_choice": choice}
    message = client.post("/v1/chat/completions", body)["choices"][0]["message"]
    _require(bool(message.get("tool_calls")), f"no tool call in {message}")
    call = message["tool_calls"][0]["function"]
    city = json.loads(call["arguments"]).get("city")
    _require(call["name"] == "get_weather" and city in ("Paris", "Tokyo"), f"a tool call outside its schema: {call}")
    return f"{call['name']}({call['arguments']})"


def _streamed(client: Client) -> str:
    body = {"model": SERVED_NAME, "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
    with client.stream("/v1/completions", body) as events:
        pieces = [event["choices"][0]["text"] for event in events if event["choices"]]
    _require(len(pieces) > 1, f"a streamed answer in {len(pieces)} pieces")
    return "|".join(pieces)


def _chat_body(tokens: int, template: dict[str, Any]) -> dict[str, Any]:
    common = {"model": SERVED_NAME, "messages": QUESTION, "temperature": 0}
    return {**common, "max_tokens": tokens, "chat_template_kwargs": template}


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise DemoFailed(message)


@contextmanager
def _waiting(console: Console) -> Iterator[Progress]:
    """Progress of the start: a spinner on a terminal, a line every ten seconds elsewhere."""
    printed = 0

    def line(elapsed: float, last: str) -> None:
        nonlocal printed
        if elapsed // 10 > printed:
            printed = int(elapsed // 10)
            console.print(f"  {elapsed:3.0f} s  {message_of(last)}", markup=False, highlight=False, soft_wrap=True)

    if not console.is_terminal:
        yield line
        return
    with console.status("starting") as status:
        yield lambda elapsed, last: status.update(f"starting, {elapsed:.0f} s  [dim]{escape(message_of(last)[:90])}[/]")
