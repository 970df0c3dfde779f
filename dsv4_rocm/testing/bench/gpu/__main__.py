"""`make bench-gpu`: results of every op against fp64, then times, on the GPU of this machine; JSON to send back."""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dsv4_rocm import arch
from dsv4_rocm.cache.specs import SERVED
from dsv4_rocm.model_spec import LayerKind
from dsv4_rocm.testing.bench.arguments import RANKS, Arguments, attention
from dsv4_rocm.testing.bench.cases import CASES, serving
from dsv4_rocm.testing.bench.gpu import flashmla
from dsv4_rocm.testing.bench.gpu.numerics import Accuracy, check, moved
from dsv4_rocm.testing.bench.gpu.timing import GraphTimer, Timer, Timing, copies, time_function
from dsv4_rocm.testing.bench.traffic import BATCHES, minimum

SECONDS = 7 * 60  # times stop here, so that a person waits less than eight minutes


@dataclass(frozen=True, slots=True)
class GpuCase:
    """Arguments of one op that are run on the GPU.

    Attributes:
        op: name of the op.
        name: readable id.
        build: makes the arguments on the host.
        bytes_minimum: bytes that have to move.
    """

    op: str
    name: str
    build: Callable[[], Arguments]
    bytes_minimum: Callable[[Arguments], int]


def cases() -> list[GpuCase]:
    """Every op at the benchmark's shape, and the decode attention at batch 1, 8 and 64 of three deployments."""
    found = [
        GpuCase(case.op, case.name, case.arguments, partial(_known, case.bytes_minimum or 0))
        for case in CASES
        if case.emulate and case.op != "sparse_attention" and case.encodings == SERVED
    ]
    for rank in RANKS:
        for batch in BATCHES:
            build = partial(attention, rank, LayerKind.C4A, requests=batch, entries=rank.spec.index_topk)
            found.append(GpuCase("sparse_attention", f"{rank.name}-c4a-decode-b{batch}", build, minimum))
    return found


def _known(value: int, _: Arguments) -> int:
    return value


def require_gpu() -> arch.GpuArch:
    """The architecture of the GPU in this machine.

    Raises:
        SystemExit: there is none that torch can use.
    """
    if not torch.cuda.is_available():
        sys.exit(
            "make bench-gpu needs an AMD or NVIDIA GPU and a torch that can use it: torch.cuda.is_available() is False "
            f"(torch {torch.__version__}). Without a GPU: make bench"
        )
    return arch.current()


@dataclass(frozen=True, slots=True)
class Contestant:
    """Something that computes an op.

    Attributes:
        name: what records call it.
        call: takes the op's arguments by name.
    """

    name: str
    call: Callable[..., Any]


def contestants(case: GpuCase, arguments: Arguments, name: str) -> list[Contestant]:
    """GPU implementations that serve the architecture, and FlashMLA where it is at hand and has this shape."""
    found = [Contestant(one.name, one.load()) for one in serving(case.op, name)]
    if case.op == "sparse_attention" and arguments["query"].shape[1] in flashmla.HEADS:
        rival = flashmla.load()
        if rival is not None:
            found.append(Contestant("FlashMLA", flashmla.SparseDecode(rival)))
    return found


def accuracies(case: GpuCase, name: str, device: torch.device | str) -> Iterator[Accuracy]:
    """Results of one case against fp64."""
    arguments = case.build()
    for one in contestants(case, arguments, name):
        turned = not isinstance(one.call, flashmla.SparseDecode)  # it does not turn its result back
        given = {key: value for key, value in arguments.items() if turned or key != "frequencies"}
        yield from check(case.op, one.name, case.name, one.call, given, device)


def timings(case: GpuCase, name: str, device: torch.device | str, timer: Timer) -> Iterator[Timing]:
    """Times of one case."""
    arguments = case.build()
    least = case.bytes_minimum(arguments)
    sets = [moved(arguments, device) for _ in range(copies(least))]
    for one in contestants(case, arguments, name):
        calls: list[Callable[[], Any]] = [partial(one.call, **given) for given in sets]
        if isinstance(one.call, flashmla.SparseDecode):  # its index lists are the step's, not the layer's
            calls = [one.call.prepared(given) for given in sets]
        yield time_function((case.op, one.name, case.name), calls, least, device, timer)


def about() -> dict[str, Any]:
    """The machine, for whoever reads the figures."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "arch": arch.current().name,
        "compute_units": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "torch": torch.__version__,
        "hip": torch.version.hip,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def gather(
    name: str, device: torch.device | str, timer: Timer, say: Callable[[str], None], seconds: float = SECONDS
) -> dict[str, Any]:
    """Everything that is sent back but the machine: what fails is noted, and the rest still runs."""
    start = time.monotonic()
    report: dict[str, Any] = {"accuracy": [], "times": [], "errors": []}
    for case in cases():
        parts: dict[str, Callable[[], Iterable[Accuracy | Timing]]] = {
            "accuracy": partial(accuracies, case, name, device),
            "times": partial(timings, case, name, device, timer),
        }
        for kind, part in parts.items():
            if kind == "times" and time.monotonic() - start > seconds:
                report["errors"].append(f"no time left for the times of {case.op} {case.name}")
                continue
            try:
                for found in part():
                    report[kind].append(asdict(found))
                    say(str(found))
            except Exception as error:
                report["errors"].append(f"{kind} of {case.op} {case.name}: {type(error).__name__}: {error}")
                say(report["errors"][-1])
    return report


def main() -> None:
    """Entry of `make bench-gpu`."""
    parser = argparse.ArgumentParser(prog="python -m dsv4_rocm.testing.bench.gpu", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("build/bench-gpu.json"), help="what to send back")
    target, console = parser.parse_args().json, Console(width=160)
    name = require_gpu().name
    report = {"about": about()} | gather(name, "cuda", GraphTimer(), console.print)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n")
    wrong = [one for one in report["accuracy"] if not one["passed"]]
    ratios = [one["over_copy"] for one in report["times"]]
    summary = f"{len(wrong)} of {len(report['accuracy'])} results wrong, {len(report['errors'])} errors; "
    summary += f"median time over a copy {statistics.median(ratios):.2f}; " if ratios else "no times; "
    console.print(f"{summary}send back {target}")
    sys.exit(1 if wrong or report["errors"] else 0)


if __name__ == "__main__":
    main()
