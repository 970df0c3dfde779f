"""The `dsv4-rocm` command: tiny checkpoints, the demo, the doctor, the memory plan, recipes, validation."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from dsv4_rocm.recipes.app import app as recipes_app
from dsv4_rocm.testing.tiny_config import DEMO, ORACLE, TinyConfig, WeightFormat
from dsv4_rocm.validation.app import parity_app, validate

# torch and vLLM take seconds to import: the commands that need them import them themselves.
app = typer.Typer(
    help="DeepSeek-V4 for vLLM on AMD Instinct: tools around the plugin.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(recipes_app, name="recipes")
app.add_typer(parity_app, name="parity")
app.command()(validate)
PRESETS = {"demo": DEMO, "oracle": ORACLE}


def main() -> None:
    """Entry point of the `dsv4-rocm` script."""
    app()


@app.command()
def tiny(
    directory: Annotated[Path, typer.Argument(help="Where to write it; must be empty or new.", show_default=False)],
    weights: Annotated[WeightFormat, typer.Option(help="fp8: FP8 linears and FP4 experts, as shipped.")] = "fp8",
    preset: Annotated[Literal["demo", "oracle"], typer.Option(help="Sizes to start from.")] = "demo",
    seed: Annotated[int, typer.Option(help="Of the random weights; equal seeds give equal bytes.")] = 0,
    layers: Annotated[str | None, typer.Option(help='Compress ratio of each layer: "0,0,4,128,4,128".')] = None,
    hash_layers: Annotated[int | None, typer.Option(help="First layers that route by token id.")] = None,
    mtp_layers: Annotated[int | None, typer.Option(help="MTP layers.")] = None,
    experts: Annotated[int | None, typer.Option(help="Routed experts.")] = None,
    experts_per_token: Annotated[int | None, typer.Option(help="Experts each token uses.")] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads.")] = None,
    index_heads: Annotated[int | None, typer.Option(help="Query heads of the indexer.")] = None,
    index_topk: Annotated[int | None, typer.Option(help="Entries the indexer keeps.")] = None,
    expert_width: Annotated[int | None, typer.Option(help="Inner size of an expert.")] = None,
    vocab: Annotated[int | None, typer.Option(help="Vocabulary size.")] = None,
    shards: Annotated[int, typer.Option(help="Safetensors files.")] = 2,
    force: Annotated[bool, typer.Option("--force", help="Write into a directory that holds files.")] = False,
) -> None:
    """Write a tiny random DeepSeek-V4 checkpoint in the real on-disk format, with a tokenizer."""
    with _one_line_errors(ValueError, OSError):
        changes = {
            "compress_ratios": None if layers is None else _ratios(layers),
            "num_hash_layers": hash_layers,
            "num_nextn_predict_layers": mtp_layers,
            "n_routed_experts": experts,
            "num_experts_per_tok": experts_per_token,
            "num_attention_heads": heads,
            "index_n_heads": index_heads,
            "index_topk": index_topk,
            "moe_intermediate_size": expert_width,
            "vocab_size": vocab,
        }
        config = _changed(PRESETS[preset], changes)
        if directory.exists() and any(directory.iterdir()) and not force:
            raise ValueError(f"{directory} is not empty; choose another directory or add --force")
        from dsv4_rocm.testing.tiny_checkpoint import write_checkpoint

        write_checkpoint(directory, config, weights, shards=shards, seed=seed)
    size = sum(path.stat().st_size for path in directory.iterdir()) / 2**20
    Console().print(
        f"{directory}: {config.num_hidden_layers} layers, {weights} weights, {size:.1f} MiB", soft_wrap=True
    )


@app.command()
def demo(
    log: Annotated[Path | None, typer.Option(help="Keep the server's log in this file.", show_default=False)] = None,
) -> None:
    """Serve a tiny checkpoint with vLLM through this plugin and show what it answers (about a minute)."""
    from dsv4_rocm.demo import DemoFailed, run

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)  # by an exception, so that the server is stopped
    with _one_line_errors(DemoFailed, OSError):
        run(Console(), log)


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a report.")] = False,
) -> None:
    """Say what this machine is, which versions are installed, and which implementation each op would use."""
    from dsv4_rocm import doctor as report

    found = report.collect()
    sys.stdout.write((report.as_json(found) if json else report.render(found)) + "\n")


@app.command()
def plan(
    model: Annotated[str, typer.Option(help="flash, pro, or a checkpoint directory.")] = "flash",
    gpu: Annotated[str, typer.Option(help="MI325X, MI355X, H200, B200 or B300.")] = "MI325X",
    gpus: Annotated[int | None, typer.Option(help="How many; by default --tp times --dp.")] = None,
    tp: Annotated[int | None, typer.Option(help="--tensor-parallel-size; by default what --dp leaves.")] = None,
    dp: Annotated[int | None, typer.Option(help="--data-parallel-size.")] = None,
    ep: Annotated[bool, typer.Option("--ep", help="--enable-expert-parallel.")] = False,
    max_model_len: Annotated[int | None, typer.Option(help="By default all positions of the model.")] = None,
    max_num_seqs: Annotated[int, typer.Option(help="vLLM's default on these GPUs.")] = 1024,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="By default vLLM's on this GPU.")] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, fp8 or bfloat16.")] = "auto",
    indexer_kv_dtype: Annotated[str, typer.Option(help="auto, fp8, bf16, or mxfp4 with fp8 key rows.")] = "auto",
    kv_cache_memory_bytes: Annotated[int | None, typer.Option(help="Size of the KV pool on each GPU.")] = None,
    util: Annotated[float, typer.Option("--util", "--gpu-memory-utilization", help="Share of the memory.")] = 0.9,
    async_scheduling: Annotated[bool, typer.Option(help="Two batches in flight, vLLM's default.")] = True,
    enforce_eager: Annotated[bool, typer.Option("--enforce-eager", help="No graphs.")] = False,
    num_speculative_tokens: Annotated[int, typer.Option(help="Drafts of a step.")] = 0,
    state_pages: Annotated[Literal["dense", "gapped"], typer.Option(help="dense: as vLLM's own windows.")] = "gapped",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a report.")] = False,
) -> None:
    """Say whether a serve command fits into memory, for how many requests, and what limits it. Exit status 1 if not."""
    from json import dumps

    with _one_line_errors(ValueError, OSError):
        from dsv4_rocm.cache.plan_flags import read_flags
        from dsv4_rocm.cache.plan_report import render
        from dsv4_rocm.cache.planner import as_json, make_plan
        from dsv4_rocm.cache.pool import StatePages

        request = read_flags(
            model=model,
            gpu=gpu,
            gpus=gpus,
            tensor=tp,
            data=dp,
            expert=ep,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_cache_dtype=kv_cache_dtype,
            indexer_kv_dtype=indexer_kv_dtype,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            util=util,
            async_scheduling=async_scheduling,
            eager=enforce_eager,
            num_speculative_tokens=num_speculative_tokens,
            state_pages=StatePages(state_pages),
        )
        made = make_plan(request)
    sys.stdout.write((dumps(as_json(made), indent=2) if json else render(made)) + "\n")
    if not made.fits:
        raise typer.Exit(1)


def _exit_on_signal(number: int, _: object) -> None:
    sys.exit(128 + number)


def _ratios(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f'layers: expected compress ratios like "0,0,4,128", got "{text}"') from None


def _changed(config: TinyConfig, changes: dict[str, Any]) -> TinyConfig:
    given = {name: value for name, value in changes.items() if value is not None}
    ratios = given.get("compress_ratios", config.compress_ratios)
    given.setdefault("num_hash_layers", min(config.num_hash_layers, len(ratios)))
    return replace(config, **given)


@contextmanager
def _one_line_errors(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        Console(stderr=True).print(f"dsv4-rocm: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
