"""Top-k in HIP against the reference: exact ids, whatever the scores, the lengths and the order of the waves."""

import ctypes
from dataclasses import dataclass

import pytest
import torch

from dsv4_rocm.cache.addressing import TokenBatch
from dsv4_rocm.kernels import hip_runtime, selection
from dsv4_rocm.kernels.hip_runtime import HipKernel
from dsv4_rocm.kernels.indexer_select import hip_selection
from dsv4_rocm.kernels.indexer_select.reference import top_entries
from dsv4_rocm.testing import cdna
from dsv4_rocm_hip import manifest

pytest.importorskip("rocm.llvm", reason="disassembles code objects: pip install -r .ci/requirements.txt")
NAN, INF = float("nan"), float("inf")
FLASH, PRO = 512, 1024  # entries that the models keep
LONG = 262_144  # entries of a million tokens


def random(rows, width):
    return torch.randn(rows, width)


def tied(rows, width):
    """A handful of values, the threshold among many equals."""
    return torch.randn(rows, width).mul(0.7).round()


def with_nan(rows, width):
    """A third NaN, some infinite: of the shorter rows fewer than top_k are left."""
    scores = torch.randn(rows, width)
    kind = torch.randint(0, 12, scores.shape)
    return scores.masked_fill(kind < 4, NAN).masked_fill(kind == 4, INF).masked_fill(kind == 5, -INF)


def negative_zero(rows, width):
    """Zeros of both signs are equal, so the threshold falls among them."""
    zeros = torch.where(torch.rand(rows, width) < 0.5, 0.0, -0.0)
    return torch.where(torch.rand(rows, width) < 0.8, zeros, torch.randn(rows, width) * 1e-40)


def narrow(rows, width):
    """Scores of one sign and size, as the indexer gives them: the leading bits are all the same."""
    return torch.randn(rows, width) * 0.3 + 10


KINDS = {kind.__name__: kind for kind in (random, tied, with_nan, negative_zero, narrow)}


@dataclass(frozen=True, slots=True)
class Rows:
    """Scores of some tokens, and what each sees."""

    scores: torch.Tensor
    visible: list[int]
    ratio: int = 4

    @property
    def batch(self) -> TokenBatch:
        """A request a row; positions at the end of an entry, or in the middle of the next one."""
        seen = torch.tensor(self.visible)
        rows = torch.arange(len(seen))
        positions = seen * self.ratio - 1 + rows % self.ratio
        return TokenBatch(positions, torch.arange(len(seen) + 1, dtype=torch.int32), rows)

    def select(self, top_k: int, first: int = 0, requests: int | None = None) -> torch.Tensor:
        rows, width = self.scores.shape
        out = torch.full((rows, top_k), -7, dtype=torch.int32)
        space = torch.full((hip_selection.candidate_words(width, top_k) * rows,), -1, dtype=torch.int32)
        requests = rows if requests is None else requests
        hip_selection.select_entries(self.scores[first:], self.batch, first, requests, self.ratio, out, space)
        return out

    def expected(self, top_k: int) -> torch.Tensor:
        ids = top_entries(self.scores, torch.tensor(self.visible), top_k)
        last = torch.iinfo(torch.int32).max
        ascending = ids.masked_fill(ids < 0, last).sort(1).values
        return ascending.masked_fill(ascending == last, -1)


@pytest.fixture
def seeded():
    torch.manual_seed(5)


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("kind", KINDS)
def test_short_rows(gfx_arch, kind):
    """Nothing visible, fewer than top_k, exactly as many, one more, and up to a full segment."""
    visible = [0, 1, 511, 512, 513, 1800, 5001, 8191, 8192]
    rows = Rows(KINDS[kind](len(visible), 8192), visible)
    with cdna.device(gfx_arch) as device:
        found = rows.select(FLASH)
    assert torch.equal(found, rows.expected(FLASH))
    assert len(device.launches) == 1


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_many_segments(gfx_arch, kind):
    """A row in one segment, one that begins a second, and one whose ten segments need the bound of the merge."""
    visible = [8192, 8193, 80_003]
    rows = Rows(KINDS[kind](len(visible), 80_003), visible)
    with cdna.device(gfx_arch) as device:
        found = rows.select(FLASH)
    assert torch.equal(found, rows.expected(FLASH))
    assert [name for name, _ in device.launches] == ["topk_segment", "topk_merge"]


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("order", ["ascending", "descending", "equal", "unusable"])
def test_scores_that_the_bound_does_not_thin_out(order):
    """The best all in one place, every candidate in the threshold's bin, or nothing to keep."""
    scores = {
        "ascending": torch.arange(40_000.0),
        "descending": -torch.arange(40_000.0),
        "equal": torch.ones(40_000),
        "unusable": torch.full((40_000,), NAN),
    }[order]
    rows = Rows(scores[None], [39_998])
    with cdna.device("gfx942"):
        assert torch.equal(rows.select(PRO), rows.expected(PRO))


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize(("kind", "top_k"), [("random", 8192), ("tied", 2500)], ids=["registers", "candidates"])
def test_more_kept_than_the_merge_holds(kind, top_k):
    """Five segments of 8,192 are beyond its registers, tied ones of 2,500 beyond its LDS: it goes through memory."""
    rows = Rows(KINDS[kind](1, 5 * 8192), [5 * 8192])
    with cdna.device("gfx950"):
        assert torch.equal(rows.select(top_k), rows.expected(top_k))


@pytest.mark.usefixtures("seeded")
def test_a_round_writes_its_rows_only():
    """Tokens from the second on; the last one belongs to no request."""
    rows = Rows(random(4, 600), [600, 550, 20, 600])
    with cdna.device("gfx942"):
        found = rows.select(64, first=1, requests=3)
    assert torch.equal(found[0], torch.full((64,), -7, dtype=torch.int32))
    assert torch.equal(found[1:3], rows.expected(64)[1:3])
    assert (found[3] == -1).all()


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("schedule", ["forward", "reverse", "random:3"])
def test_order_of_the_waves_does_not_matter(schedule):
    rows = Rows(tied(2, 9000), [700, 9000])
    with cdna.device("gfx942", schedule=schedule):
        assert torch.equal(rows.select(FLASH), rows.expected(FLASH))


def _without_barrier(text: str, number: int) -> str:
    before, *after = text.split("\ts_barrier\n")
    return before + "".join(("\t" if k == number else "\ts_barrier\n") + part for k, part in enumerate(after))


class Replayed:
    """In the place of a kernel: runs it once, then puts back what it wrote."""

    def __init__(self, kernel: HipKernel) -> None:
        self.kernel, self.kept = kernel, None

    def launch(self, grid, threads, **values):
        if self.kept is None:
            self.kernel.launch(grid, threads, **values)
            self.kept = {name: values[name].clone() for name in ("keys", "ids", "maxima")}
        for name, kept in self.kept.items():
            values[name].copy_(kept)


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("kernel", ["topk_segment", "topk_merge"])
def test_every_barrier_is_needed(monkeypatch, kernel):
    """Mutation control: a kernel that lacks one barrier is caught on a row of ties, or one that takes the slow path."""
    assembly = hip_runtime._assembly
    text, _ = assembly(hip_selection.VARIANT, kernel, "gfx942")
    problems = [(Rows(tied(1, 9000), [9000]), FLASH)]
    if kernel == "topk_merge":
        problems.append((Rows(torch.ones(1, 20_000), [20_000]), 2500))
    segments = [Replayed(hip_selection.SEGMENT_KERNEL) for _ in problems]

    def caught(number: int) -> bool:
        def mutated(variant, name, arch):
            text, info = assembly(variant, name, arch)
            return (_without_barrier(text, number) if name == kernel else text), info

        monkeypatch.setattr(hip_runtime, "_assembly", mutated)
        for (rows, top_k), replayed in zip(problems, segments, strict=True):
            if kernel == "topk_merge":
                monkeypatch.setattr(hip_selection, "SEGMENT_KERNEL", replayed)
            try:
                with cdna.device("gfx942"):
                    found = rows.select(top_k)
            except cdna.Finding as finding:
                return finding.kind == "race"
            if not torch.equal(found, rows.expected(top_k)):
                return True
        return False

    assert not caught(-1), "nothing is removed"
    numbers = range(text.count("\ts_barrier\n"))
    assert len(numbers) > 4
    assert [number for number in numbers if not caught(number)] == []


def test_the_struct_is_the_kernels(gfx_arch):
    loaded = cdna.CodeObject(manifest.load(hip_selection.VARIANT, gfx_arch))
    for kernel in (hip_selection.SEGMENT_KERNEL, hip_selection.MERGE_KERNEL):
        (argument,) = [a for a in loaded.info(kernel.name).arguments if not a.hidden]
        assert argument.size == ctypes.sizeof(hip_selection.Params)


@pytest.mark.usefixtures("seeded")
def test_a_host_that_emulates_a_gpu_runs_it(monkeypatch):
    """As the engine does: the implementation is loaded, nothing is entered by the caller."""
    monkeypatch.setenv("DSV4_ROCM_KERNELS", "emulated:gfx950")
    target = f"{hip_selection.select_entries.__module__}:select_entries"
    monkeypatch.setattr(
        hip_selection, "select_entries", selection.Implementation("hip", target, selection.always).load()
    )
    rows = Rows(random(1, 600), [600])
    assert torch.equal(rows.select(64), rows.expected(64))


def test_arguments_are_checked():
    rows = Rows(random(2, 9000), [9000, 9000])
    out, none = torch.empty(2, 512, dtype=torch.int32), torch.empty(0, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"fp32 scores.*got torch.float64"):
        hip_selection.select_entries(rows.scores.double(), rows.batch, 0, 2, 4, out, none)
    with pytest.raises(ValueError, match="candidates must have 4608 words, got 0"):
        hip_selection.select_entries(rows.scores, rows.batch, 0, 2, 4, out, none)
    with pytest.raises(ValueError, match="top_k must be at most 8192, got 9000"):
        hip_selection.select_entries(rows.scores, rows.batch, 0, 2, 4, torch.empty(2, 9000, dtype=torch.int32), none)


# The model of a row's time at batch 1. Assumed, not measured: the clock; the busiest of the vector, scalar and LDS
# units sets a workgroup's pace, since each SIMD has four waves to switch between; every dependent trip to memory and
# every barrier waits its full latency; loads come at what one CU can read; workgroups of one row run at once.
CLOCK_GHZ = {"gfx942": 2.1, "gfx950": 2.4}
START_US = 4.0  # from one kernel of a graph to the next
MEMORY_US = 1.0
BARRIER_CLOCKS = 150  # the LDS round trip before it, and the wait for the slowest wave
READ_BYTES_PER_CLOCK = 64
TRIPS = {"topk_segment": 3, "topk_merge": 3}  # position, scores, stores; position, kept keys with maxima, ids


def microseconds(name: str, stats: cdna.Stats, workgroups: int, arch: str) -> float:
    """Time of a launch by the model above, from the emulator's exact counts."""
    issue = max((stats.valu_clocks + stats.trans_clocks) / 4, stats.scalar_instructions)
    issue = max(issue, stats.lds_clocks + stats.conflict_clocks)
    barriers = stats.by_opcode["s_barrier"] / 16 * BARRIER_CLOCKS
    clocks = (issue + stats.memory_bytes / READ_BYTES_PER_CLOCK + barriers) / workgroups
    return START_US + TRIPS[name] * MEMORY_US + clocks / CLOCK_GHZ[arch] / 1000


@pytest.mark.usefixtures("seeded")
def test_a_row_of_a_million_tokens(gfx_arch):
    rows = Rows(narrow(1, LONG), [LONG])
    with cdna.device(gfx_arch, checks="none") as device:
        assert torch.equal(rows.select(PRO), rows.expected(PRO))
    workgroups = {"topk_segment": LONG // hip_selection.SEGMENT, "topk_merge": 1}
    times = {name: microseconds(name, stats, workgroups[name], gfx_arch) for name, stats in device.launches}
    assert sum(times.values()) <= 40, times


@pytest.mark.slow
@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("kind", ["random", "tied", "with_nan", "negative_zero"])
def test_ten_thousand_rows(gfx_arch, kind):
    """1,250 rows of each kind on each architecture; half of them see more than top_k."""
    visible = torch.randint(1, 2 * FLASH, (1250,)).tolist()
    rows = Rows(KINDS[kind](len(visible), 2 * FLASH), visible)
    with cdna.device(gfx_arch, checks="none"):
        assert torch.equal(rows.select(FLASH), rows.expected(FLASH))
