"""Times of a function by graph replay over memory that no cache holds, against a device copy of the same bytes."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

REPEATS = 50
COLD_BYTES = 512 * 1024**2  # more than any last-level cache of the GPUs we serve (256 MB on MI325X and MI355X)
MOST_COPIES = 64


class Timer(Protocol):
    """Measures a list of functions that are run one after the other."""

    def __call__(self, functions: Sequence[Callable[[], Any]]) -> list[float]:
        """Microseconds of one function, once for each repetition."""
        ...


class GraphTimer:
    """Captures the functions in one graph and replays it."""

    def __call__(self, functions: Sequence[Callable[[], Any]]) -> list[float]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for function in functions:  # compiles, and allocates what stays
                function()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for function in functions:
                function()
        graph.replay()
        torch.cuda.synchronize()
        found = []
        for _ in range(REPEATS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(1000 * start.elapsed_time(end) / len(functions))
        return found


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one implementation.

    Attributes:
        op: name of the op.
        impl: implementation.
        case: production shape.
        microseconds: median of the repetitions.
        spread: (slowest - fastest) / median.
        bytes_minimum: bytes that have to move.
        copy_microseconds: a device copy that moves as many.
        over_copy: the ratio of both.
    """

    op: str
    impl: str
    case: str
    microseconds: float
    spread: float
    bytes_minimum: int
    copy_microseconds: float
    over_copy: float


def copies(bytes_touched: int) -> int:
    """How many sets of arguments to rotate through, so that none is in a cache when its turn comes."""
    return max(1, min(MOST_COPIES, -(-COLD_BYTES // max(bytes_touched, 1))))


def copy_time(num_bytes: int, device: torch.device | str, timer: Timer) -> float:
    """Median microseconds of a device copy that reads and writes `num_bytes` together."""
    pairs = copies(num_bytes)
    half = max(num_bytes // 2, 1)
    source, target = torch.zeros(2, pairs, half, dtype=torch.uint8, device=device)
    functions = [lambda k=k: target[k].copy_(source[k]) for k in range(pairs)]
    return statistics.median(timer(functions))


def time_function(
    labels: tuple[str, str, str],
    functions: Sequence[Callable[[], Any]],
    bytes_minimum: int,
    device: torch.device | str,
    timer: Timer,
) -> Timing:
    """Time one function over several sets of arguments.

    Args:
        labels: op, implementation, case.
        functions: the same work on memory of its own each.
        bytes_minimum: bytes that one of them has to move.
        device: where they run.
        timer: measures.
    """
    times = timer(functions)
    middle = statistics.median(times)
    copy = copy_time(bytes_minimum, device, timer)
    spread = (max(times) - min(times)) / middle
    return Timing(*labels, middle, spread, bytes_minimum, copy, middle / copy)
