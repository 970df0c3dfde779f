"""The shipped configurations of every op: what is compiled for all architectures, held to budgets, and emulated."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dsv4_rocm import arch
from dsv4_rocm.arch import GpuArch
from dsv4_rocm.cache.layout import Encoding, index_layout, swa_layout
from dsv4_rocm.cache.specs import SERVED, CacheEncodings
from dsv4_rocm.kernels.inv_rope_quant.op import SCALE_GROUP
from dsv4_rocm.kernels.selection import Implementation, implementations
from dsv4_rocm.model_spec import FLASH, HEAD_DIM, INDEX_HEAD_DIM, LayerKind
from dsv4_rocm.testing.bench.arguments import (
    FLASH_TP1,
    Arguments,
    Rank,
    attention,
    compress,
    index_query,
    index_select,
    inverse,
    query_insert,
)
from dsv4_rocm.testing.bench.cuda_builds import CUDA, CudaKernel, cuda_builds
from dsv4_rocm.testing.bench.recorder import AMD, Launched, launches
from dsv4_rocm.testing.bench.records import Record, counts, resources

ARCHES = (*AMD, *CUDA)
HEADS = (8, 16, 32, 64)  # of a rank: Flash TP8 .. TP1, Pro TP8 .. TP2; 128 are two blocks of 64


@dataclass(frozen=True, slots=True)
class Case:
    """One op at a production shape.

    Attributes:
        op: name of the op.
        name: readable id.
        group: cases of one group share budgets.
        arguments: builds the op's arguments.
        bytes_minimum: bytes that have to move, counted once.
        compute_units: of the chip that plans are made for; None is the architecture's.
        emulate: whether the benchmark runs it; others are only compiled.
        shown: whether it is in the benchmark.
        quick: whether tests compile it every time.
        encodings: of the caches; implementations that refuse them are left out.
    """

    op: str
    name: str
    group: str
    arguments: Callable[[], Arguments]
    bytes_minimum: int | None = None
    compute_units: int | None = None
    emulate: bool = True
    shown: bool = True
    quick: bool = True
    encodings: CacheEncodings = SERVED

    def on(self, name: str) -> GpuArch:
        """Facts of an architecture, with this case's number of CUs."""
        facts = arch.get(name)
        return facts if self.compute_units is None else replace(facts, compute_units=self.compute_units)


def _compressors() -> list[Case]:
    found = []
    for kind, index in ((LayerKind.C4A, False), (LayerKind.C128A, False), (LayerKind.C4A, True)):
        group = "index" if index else kind.name.lower()
        width = INDEX_HEAD_DIM if index else HEAD_DIM
        own = 2 * kind.overlap * width * 4  # the token's projections, read and stored
        least = kind.overlap * kind.ratio * width * 2 * 4 + 2 * own
        name = f"flash-{group}-decode-b1-closing"
        found.append(Case("compress_insert", name, group, partial(compress, kind, index), bytes_minimum=least))
    build = partial(compress, LayerKind.C4A, True, encoding=Encoding.MXFP4)
    name = "flash-index-mxfp4-decode-b1-closing"
    found.append(Case("compress_insert", name, "index-mxfp4", build, found[-1].bytes_minimum, encodings=MXFP4))
    return found


def _attentions() -> list[Case]:
    found = []
    for kind, entries in ((LayerKind.C4A, 512), (LayerKind.C128A, 64), (LayerKind.SWA, 0)):
        for heads in HEADS:
            rank = Rank(f"flash-tp{64 // heads}", FLASH, 64 // heads)
            for units in (1, None):  # one CU never splits keys; one token on a whole chip does where it can
                name = f"{rank.name}-{kind.name.lower()}-decode-b1" + ("-unsplit" if units else "")
                build = partial(attention, rank, kind, entries=entries)
                least = (128 + entries) * KEY_ROW + 2 * heads * HEAD_DIM * 2
                shown = kind is LayerKind.C4A and units is None
                usual = shown and heads == 64
                found.append(Case("sparse_attention", name, f"{heads}-heads", build, least, units, usual, shown, usual))
    return found


MXFP4 = CacheEncodings(Encoding.FP8, Encoding.MXFP4)


def _drafts() -> list[Case]:
    """Several tokens of a request in one workgroup."""
    found = []
    for heads, tokens in ((8, 4), (8, 8), (16, 4), (32, 2)):
        rank = Rank(f"flash-tp{64 // heads}", FLASH, 64 // heads)
        build = partial(attention, rank, LayerKind.C128A, drafts=tokens - 1, entries=128)
        for units in (1, None):
            name = f"{rank.name}-c128a-draft-verify-{tokens}" + ("-unsplit" if units else "")
            found.append(Case("sparse_attention", name, "drafts", build, None, units, False, False, False))
    return found


KEY_ROW, INDEX_ROW = swa_layout(Encoding.FP8).row_bytes, index_layout(Encoding.FP8).row_bytes
MXFP4_ROW = index_layout(Encoding.MXFP4).row_bytes
TOKEN = 64 * HEAD_DIM * 2  # bytes of the heads of a Flash token in bf16
INDEX_TOKEN = 64 * INDEX_HEAD_DIM  # index values of a token
TOP_K = 4 * FLASH.index_topk  # bytes of the ids of a token

CASES = (
    Case(
        "qnorm_rope_insert",
        "flash-tp1-decode-b8",
        "any",
        partial(query_insert, FLASH_TP1, 8),
        8 * (2 * TOKEN + 2 * HEAD_DIM + KEY_ROW),
    ),
    *_compressors(),
    Case("indexer_query", "flash-decode-b8", "any", partial(index_query, 8), 8 * (3 * INDEX_TOKEN + 2 * 64 * 4)),
    Case(
        "indexer_select",
        "flash-decode-b2",
        "one-token",
        partial(index_select, 2, 600),
        2 * (600 * INDEX_ROW + INDEX_TOKEN + TOP_K),
    ),
    Case(
        "indexer_select",
        "flash-draft-verify-4",
        "drafts",
        partial(index_select, 1, 600, 3),
        600 * INDEX_ROW + 4 * (INDEX_TOKEN + TOP_K),
    ),
    Case(
        "indexer_query",
        "flash-mxfp4-decode-b8",
        "mxfp4",
        partial(index_query, 8, encoding=Encoding.MXFP4),
        8 * (3 * INDEX_TOKEN + 2 * 64 * 4),
        encodings=MXFP4,
    ),
    Case(
        "indexer_select",
        "flash-mxfp4-decode-b2",
        "mxfp4",
        partial(index_select, 2, 600, encoding=Encoding.MXFP4),
        2 * (600 * MXFP4_ROW + INDEX_TOKEN + TOP_K),
        encodings=MXFP4,
    ),
    *_attentions(),
    *_drafts(),
    Case(
        "inv_rope_quant",
        "flash-tp1-decode-b8",
        "any",
        partial(inverse, FLASH_TP1, 8),
        8 * (TOKEN + TOKEN // 2 + TOKEN // 2 // SCALE_GROUP * 4),
    ),
)


def serving(op: str, name: str, encodings: CacheEncodings = SERVED) -> list[Implementation]:
    """GPU implementations of an op that take caches in these encodings on an architecture."""
    facts = arch.get(name)
    found = [one for one in implementations(op) if one.name != "reference"]
    return [one for one in found if one.refuses(facts, encodings) is None]


def compile_case(case: Case, implementation: Implementation, name: str) -> list[Launched] | list[CudaKernel]:
    """The kernels that an implementation launches for a case, compiled and not run."""
    call: Callable[[], Any] = partial(implementation.load(), **case.arguments())
    if name in CUDA:
        return cuda_builds(name, call, case.on(name))
    return launches(name, call, run=False, on=case.on(name))


def measure(case: Case, name: str) -> list[Record]:
    """Records of one case on one architecture, for every GPU implementation of its op.

    Raises:
        Finding: a kernel does something the hardware would punish.
    """
    records = []
    for implementation in serving(case.op, name, case.encodings):
        common = {"op": case.op, "impl": implementation.name, "arch": name, "case": case.name}
        call: Callable[[], Any] = partial(implementation.load(), **case.arguments())
        if name in CUDA:
            records += [_cuda_record(common, kernel) for kernel in cuda_builds(name, call, case.on(name))]
        else:
            every = launches(name, call, run=case.emulate, on=case.on(name))
            records += _amd_records(common | {"how": "emulated" if case.emulate else "compiled"}, case, every)
    return records


def _amd_records(common: dict[str, Any], case: Case, every: list[Launched]) -> list[Record]:
    """One record a kernel, and one for all where it takes several to move what has to be moved."""
    name, alone = common["arch"], len(every) == 1
    found = []
    for launched in every:
        counted = counts(launched) if case.emulate else {}
        fields = common | resources(launched, name) | counted
        found.append(Record(**fields, bytes_minimum=case.bytes_minimum if alone and case.emulate else None))
    if case.emulate and not alone:
        moved, requested = (sum(getattr(one, field) for one in found) for field in ("bytes_moved", "bytes_requested"))
        totals = {"bytes_moved": moved, "bytes_requested": requested, "bytes_minimum": case.bytes_minimum}
        found.append(Record(**common, **totals, remark="all kernels together"))
    return found


def _cuda_record(common: dict[str, Any], kernel: CudaKernel) -> Record:
    return Record(
        **common,
        how="compiled",
        kernel=kernel.name,
        vgpr=kernel.registers,
        vgpr_spills=0 if kernel.stack_bytes == 0 else None,
        scratch_bytes=kernel.stack_bytes,
        lds_bytes=kernel.shared_bytes,
    )
