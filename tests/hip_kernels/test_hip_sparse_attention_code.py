"""The machine code of sparse_attention in HIP: what the compiler made, what it costs, and that every guard is needed.

Clocks are issue clocks of a CU, counted by the emulator; no time is measured.
"""

import ctypes
import re
import runpy
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from dsv4_rocm.kernels import hip_runtime
from dsv4_rocm.kernels.sparse_attention.hip_binding import VARIANT, CombineParams, Params, sparse_attention
from dsv4_rocm.model_spec import LayerKind
from dsv4_rocm.testing import cdna
from dsv4_rocm.testing.cdna.code_object import CodeObject
from dsv4_rocm_hip import manifest

Scene = runpy.run_path(str(Path(__file__).parents[1] / "kernels/triton/test_triton_sparse_attention.py"))["Scene"]
ROWS = (16, 32, 64)
ALONE_AND_SHARING = [f"sparse_attention_{rows}{sharing}" for rows in ROWS for sharing in ("", "_sharing")]
KERNELS = {
    "gfx942": [*ALONE_AND_SHARING, *(f"{name}_foreign" for name in ALONE_AND_SHARING)],
    "gfx950": ALONE_AND_SHARING,
}
# bf16 products of 16 x 16 x 16 and x 32: 64 and 32 clocks for a key of 64 heads
MFMA = {"gfx942": "v_mfma_f32_16x16x16_bf16", "gfx950": "v_mfma_f32_16x16x32_bf16"}
PER_KEY = {"gfx942": 45, "gfx950": 32}  # vector ALU and transcendental clocks, a key and 64 rows
MATRIX_PER_KEY = {"gfx942": 64, "gfx950": 32}
MARGIN = 0.05  # of the figures below; another compiler schedules a little differently
PER_WORKGROUP = {"gfx942": 5000, "gfx950": 4000}


@pytest.fixture(scope="module")
def code_objects() -> dict[str, CodeObject]:
    return {arch: CodeObject(manifest.load(VARIANT, arch)) for arch in KERNELS}


def test_the_code_objects_hold_what_the_binding_asks_for(code_objects, gfx_arch: str) -> None:
    assert set(code_objects[gfx_arch].kernels) == {*KERNELS[gfx_arch], "sparse_attention_combine"}


@pytest.mark.parametrize(("arch", "name"), [(arch, name) for arch, names in KERNELS.items() for name in names])
def test_what_the_compiler_made(code_objects, arch: str, name: str) -> None:
    """The matrix products of three kinds of wave, no others, and keys that come 16 bytes at a time."""
    text = code_objects[arch].assembly(name)
    products = re.findall(r"\bv_mfma_\w+", text)
    tiles = int(name.split("_")[2]) // 16
    deep = 2 if arch == "gfx942" else 1  # instructions for 32 channels or keys
    assert set(products) == {MFMA[arch]}
    assert len(products) == 3 * (4 + 4) * tiles * deep
    assert len(re.findall(r"\bglobal_load_dwordx4", text)) >= 3 * 2 * 2


@pytest.mark.parametrize("name", ["sparse_attention_64", "sparse_attention_64_sharing"])
def test_loads_are_in_flight_over_barriers(code_objects, gfx_arch: str, name: str) -> None:
    """No barrier of the loop waits for global memory: of the waits before it, none asks for all loads."""
    lines = code_objects[gfx_arch].assembly(name).splitlines()
    labels = {line[:-1]: k for k, line in enumerate(lines) if line.endswith(":")}
    jumps = [(k, re.search(r"s_c?branch\w* (L\w+)", line)) for k, line in enumerate(lines)]
    loops = [(labels[jump[1]], k) for k, jump in jumps if jump and labels[jump[1]] < k]
    hot = [(a, b) for a, b in loops if sum("v_mfma" in line for line in lines[a:b]) >= 32]
    assert hot
    for start, end in hot:
        for k in range(start, end):
            if "s_barrier" in lines[k]:
                assert not any("vmcnt(0)" in line for line in lines[max(start, k - 8) : k])


def test_structs_are_what_the_kernels_take(code_objects, gfx_arch: str) -> None:
    code = code_objects[gfx_arch]
    for name in KERNELS[gfx_arch]:
        assert [a.size for a in code.info(name).arguments if not a.hidden] == [ctypes.sizeof(Params)]
    combine = code.info("sparse_attention_combine")
    assert [a.size for a in combine.arguments if not a.hidden] == [ctypes.sizeof(CombineParams)]


@dataclass(frozen=True, slots=True)
class Figures:
    """Clocks of a CU: vector ALU and transcendental for a key of 64 rows and for a workgroup, matrix for a key."""

    key: float
    matrix: float
    workgroup: float


def figures(gpu, small: tuple, large: tuple, added: int, keys: int) -> Figures:
    """From two launches of one workgroup that differ by `added` keys; the smaller one has `keys`."""
    vector, matrix = [], []
    for arguments in (small, large):
        sparse_attention(*arguments, splits=1)
        vector.append((gpu.stats.valu_clocks + gpu.stats.trans_clocks) / 4)
        matrix.append(gpu.stats.mfma_clocks / 4)
    key = (vector[1] - vector[0]) / added
    return Figures(key, (matrix[1] - matrix[0]) / added, vector[0] - key * keys)


def check(gpu, found: Figures, key: float) -> None:
    print(f"FIGURES {gpu.arch} {found}")  # noqa: T201
    assert found.key <= PER_KEY[gpu.arch]
    assert abs(found.key - key) <= MARGIN * key
    assert found.matrix == MATRIX_PER_KEY[gpu.arch]
    assert found.workgroup <= PER_WORKGROUP[gpu.arch]


def test_issue_clocks(gpu, sparse_cache, make_batch) -> None:
    scenes = [Scene(sparse_cache, make_batch((2000, 1)), LayerKind.C4A, 64, top_k) for top_k in (96, 160)]
    check(
        gpu,
        figures(gpu, *(scene.arguments() for scene in scenes), added=64, keys=128 + 96),
        {"gfx942": 39.8, "gfx950": 27.2}[gpu.arch],
    )


def test_issue_clocks_of_tokens_that_share_keys(gpu, sparse_cache, make_batch) -> None:
    """Sixteen heads of four tokens: a window of 131 positions takes five tiles."""
    scenes = [Scene(sparse_cache, make_batch((128 * entries, 4)), LayerKind.C128A, 16) for entries in (96, 160)]
    check(
        gpu,
        figures(gpu, *(scene.arguments() for scene in scenes), added=64, keys=160 + 96),
        {"gfx942": 43.0, "gfx950": 30.8}[gpu.arch],
    )


class Mutant:
    """The kernel of 16 rows on three tiles, with one instruction taken out."""

    def __init__(self, gpu, scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpu, self.scene, self.monkeypatch = gpu, scene, monkeypatch
        self.expected = sparse_attention(*scene.arguments(), splits=1)
        launch = gpu.last
        self.text, self.info = hip_runtime._assembly(VARIANT, "sparse_attention_16", gpu.arch)
        ran = {i.index for i, n in zip(launch.program.instructions, launch.counts, strict=True) if n}
        lines = self.text.splitlines()
        first = lines.index("sparse_attention_16:")
        code = [k for k in range(first + 1, len(lines)) if re.match(r"\s*[a-z]\w*(\s|$)", lines[k])]
        self.places = [code[index] for index in sorted(ran)]

    def guards(self, pattern: str) -> list[int]:
        """Lines that ran and match."""
        lines = self.text.splitlines()
        return [k for k in self.places if re.search(pattern, lines[k])]

    def survives(self, line: int) -> bool:
        """Whether nobody notices that a line is gone: no finding, and the same bits."""
        lines = self.text.splitlines()
        lines[line] = "\ts_nop 0"
        with self.monkeypatch.context() as patch:
            patch.setattr(hip_runtime, "_assembly", lambda *_: ("\n".join(lines), self.info))
            try:
                with cdna.device(self.gpu.arch, max_steps=100_000):
                    return torch.equal(sparse_attention(*self.scene.arguments(), splits=1), self.expected)
            except cdna.EmulationError:
                return False


@pytest.fixture
def mutant(gpu, sparse_cache, make_batch, monkeypatch: pytest.MonkeyPatch) -> Mutant:
    return Mutant(gpu, Scene(sparse_cache, make_batch((40, 1)), LayerKind.C4A, 16, 8), monkeypatch)


def test_every_barrier_is_needed(mutant: Mutant) -> None:
    barriers = mutant.guards(r"\bs_barrier\b")
    assert len(barriers) == 3 * 5  # before, between and after the tiles, for three kinds of wave
    assert [line for line in barriers if mutant.survives(line)] == []


def test_waits_before_barriers_are_needed(mutant: Mutant) -> None:
    """What a wave wrote to LDS must be there when the others pass the barrier.

    With 16 rows wave 3 writes nothing before the first barrier, waves 3 and 7 nothing before the last.
    """
    lines = mutant.text.splitlines()
    waits = [k for k in mutant.guards(r"s_waitcnt lgkmcnt\(0\)") if "s_barrier" in lines[k + 1]]
    assert len(waits) >= 3 * 3
    assert sum(map(mutant.survives, waits)) <= 3


@pytest.mark.slow
def test_waits_are_needed(mutant: Mutant) -> None:
    """All but those where paths meet, which the path taken implies."""
    waits = mutant.guards(r"\bs_waitcnt\b")
    assert len(waits) > 100
    assert sum(map(mutant.survives, waits)) <= len(waits) / 6
