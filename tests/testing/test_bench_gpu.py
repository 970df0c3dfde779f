"""The parts of the GPU benchmark that run without a GPU: accuracy on an emulated one, times with a clock of our own."""

import itertools
import subprocess
import sys

import pytest
import torch

from dsv4_rocm import arch
from dsv4_rocm.cache.layout import Encoding, entries_layout
from dsv4_rocm.cache.rows import decode_rows
from dsv4_rocm.kernels.selection import implementations
from dsv4_rocm.model_spec import FLASH, LayerKind
from dsv4_rocm.testing import cdna
from dsv4_rocm.testing.bench.arguments import (
    FLASH_TP1,
    Rank,
    attention,
    compress,
    index_query,
    index_select,
    inverse,
    query_insert,
)
from dsv4_rocm.testing.bench.gpu import flashmla
from dsv4_rocm.testing.bench.gpu.__main__ import cases, gather
from dsv4_rocm.testing.bench.gpu.numerics import BF16_ROUNDING, check, error, moved
from dsv4_rocm.testing.bench.gpu.timing import COLD_BYTES, copies, time_function

FLASH_TP8 = Rank("flash-tp8", FLASH, 8)
SMALL = {
    "qnorm_rope_insert": lambda: query_insert(FLASH_TP8, 2),
    "compress_insert": lambda: compress(LayerKind.C4A, index=False),
    "indexer_query": lambda: index_query(2),
    "indexer_select": lambda: index_select(1, 96, top_k=32),
    "sparse_attention": lambda: attention(FLASH_TP8, LayerKind.C4A, entries=32),
    "inv_rope_quant": lambda: inverse(FLASH_TP8, 2),
}


@pytest.mark.parametrize("op", SMALL)
def test_accuracy_of_every_op(op: str) -> None:
    """Triton on emulated gfx942 passes, and a result that is off by a percent does not."""
    triton = next(one for one in implementations(op) if one.name == "triton").load()
    with arch.override("gfx942"), cdna.device("gfx942"):
        found = check(op, "triton", "small", triton, SMALL[op](), "cpu")
    assert found
    for one in found:
        assert one.passed, one
        assert one.error < one.allowed


def test_wrong_results_do_not_pass() -> None:
    reference = implementations("sparse_attention")[-1].load()
    arguments = SMALL["sparse_attention"]()

    def off(**given):
        return reference(**given) * 1.01

    def nan(**given):
        result = reference(**given)
        result[0, 0, 0] = torch.nan
        return result

    (right,) = check("sparse_attention", "reference", "small", reference, arguments, "cpu")
    assert right.passed
    assert right.error > 0.5 * BF16_ROUNDING  # the result is rounded: fp64 is not
    assert not check("sparse_attention", "off", "small", off, arguments, "cpu")[0].passed
    assert not check("sparse_attention", "nan", "small", nan, arguments, "cpu")[0].passed


def test_error_of_ids_is_the_share_that_differs() -> None:
    ids = torch.arange(8, dtype=torch.int32)[None]
    assert error(ids, ids.flip(1)) == 0
    assert error(ids, ids + 2) == 0.25


def test_moved_keeps_strides_and_shares_nothing() -> None:
    arguments = SMALL["sparse_attention"]()
    copy = moved(arguments, "cpu")
    pages, twin = arguments["window"].pages, copy["window"].pages
    assert twin.stride() == pages.stride()
    assert torch.equal(twin, pages)
    assert twin.data_ptr() != pages.data_ptr()
    assert copy["batch"].positions.data_ptr() != arguments["batch"].positions.data_ptr()


def test_time_is_a_median_over_cold_memory() -> None:
    """Times of 3, 5 and 10 us, then a copy of 2 us."""
    calls = []
    clock = iter([[10.0, 3.0, 5.0], [2.0]])

    def timer(functions):
        calls.append(len(functions))
        for function in functions:
            function()
        return next(clock)

    ran = []
    timing = time_function(("op", "impl", "case"), [lambda k=k: ran.append(k) for k in range(3)], 1 << 20, "cpu", timer)
    assert ran == [0, 1, 2]
    assert (timing.microseconds, timing.copy_microseconds, timing.over_copy) == (5.0, 2.0, 2.5)
    assert timing.spread == pytest.approx(7 / 5)
    assert calls == [3, copies(1 << 20)]
    assert copies(COLD_BYTES * 2) == 1


def test_what_fails_is_noted_and_the_rest_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from dsv4_rocm.testing.bench.gpu import __main__ as bench

    few = [case for case in cases() if case.op == "inv_rope_quant"]
    broken = bench.GpuCase("inv_rope_quant", "broken", lambda: 1 / 0, lambda arguments: 1)
    monkeypatch.setattr(bench, "cases", lambda: [broken, *few])
    seconds = itertools.count(1.0)
    with arch.override("gfx950"), cdna.device("gfx950"):
        report = gather("gfx950", "cpu", lambda functions: [(functions[0]() is None and 0.0) or next(seconds)], print)
    assert len(report["errors"]) == 2
    assert all("ZeroDivisionError" in one for one in report["errors"])
    assert [one["passed"] for one in report["accuracy"]] == [True] * len(report["accuracy"])
    assert report["times"]


def test_flashmla_is_given_the_same_keys() -> None:
    """An operation with FlashMLA's arguments, in plain torch over the rows that the indices name."""
    arguments = attention(FLASH_TP1, LayerKind.C4A, 2, entries=32)
    arguments.pop("frequencies", None)
    layout = entries_layout(LayerKind.C4A, Encoding.FP8)

    def keys(cache, indices):
        flat = cache.reshape(cache.shape[0], -1)
        rows = []
        for index in indices.flatten().tolist():
            page, row = flat[index // layout.rows_per_page], index % layout.rows_per_page
            data = page[row * layout.data_bytes :][: layout.data_bytes]
            scales = page[layout.scale_offset + row * layout.scale_bytes :][: layout.scale_bytes]
            rows.append(decode_rows(layout, data[None], scales[None]))
        return torch.cat(rows)

    def operation(query, cache, near, length, sink, first, second, extra, far, extra_length, width, scale):
        out = torch.zeros_like(query)
        for token in range(query.shape[0]):
            every = torch.cat([keys(cache, near[token]), keys(extra, far[token])])
            logits = torch.cat([query[token, 0].float() @ every.T * scale, sink[:, None]], 1)
            out[token, 0] = (logits.softmax(1)[:, :-1] @ every).to(query.dtype)
        return out, None, torch.ones(1), torch.ones(1)

    got = flashmla.prepare(arguments)(operation)
    expected = implementations("sparse_attention")[-1].load()(**arguments)
    assert error(got, expected) <= 2 * BF16_ROUNDING


def test_without_a_gpu_it_says_so() -> None:
    done = subprocess.run([sys.executable, "-m", "dsv4_rocm.testing.bench.gpu"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "needs an AMD or NVIDIA GPU" in done.stderr
    assert "Traceback" not in done.stderr
