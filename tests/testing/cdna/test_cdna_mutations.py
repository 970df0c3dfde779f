"""Mutation control: every single-instruction deletion of a dot kernel is noticed, or shown to change nothing."""

import re
from collections import Counter

import pytest
import torch
import triton
import triton.language as tl

from dsv4_rocm.testing import cdna
from dsv4_rocm.testing.cdna import program
from dsv4_rocm.testing.cdna.checks import Checks
from dsv4_rocm.testing.cdna.operands import EXEC, SCC, VCC
from dsv4_rocm.testing.cdna.waves import S_BASE

DELETABLE = re.compile(
    r"^(v_|ds_|global_|buffer_|s_add|s_sub|s_mul|s_lshl|s_lshr|s_and|s_or|s_cmp|s_mov|s_load|s_barrier|s_waitcnt|s_nop)"
)

NAMES = {VCC: "vcc_lo", VCC + 1: "vcc_hi", 124: "m0"}
# Deletions that cannot show. K is a multiple of 64 here, so K + 63 < 64 decides exactly what K < 64 decides. An LDS
# column used for both operands alike permutes K in A and in B the same way, which leaves their product as it is.
EQUIVALENT = re.compile(
    r"^(s_add_i32 (s\d+), \2, 63|s_movk_i32 s\d+, 0x60|v_bitop3_b32 v\d+, v\d+, v\d+, s\d+ bitop3:0x6c)$"
)


@triton.jit
def dot_kernel(a_ptr, b_ptr, c_ptr, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BK)
    acc = tl.zeros((M, N), tl.float32)
    for k0 in range(0, K, BK):
        a = tl.load(a_ptr + m[:, None] * K + k0 + k[None, :])
        b = tl.load(b_ptr + n[None, :] * K + k0 + k[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc)


class Subject:
    """The kernel, its inputs, and what became of each deletion."""

    def __init__(self, arch, compile_kernel, size, depth):
        torch.manual_seed(0)
        self.arch, self.size, self.depth = arch, size, depth
        signature = {"a_ptr": "*bf16", "b_ptr": "*bf16", "c_ptr": "*fp32", "K": "i32"}
        constants = {"M": size, "N": size, "BK": 64}
        self.kernel = compile_kernel(dot_kernel, arch, signature, constants, aligned=list(signature), num_warps=4)
        self.a, self.b = (torch.randn(size, depth).bfloat16() for _ in range(2))
        self.reference = self.a.double() @ self.b.double().T
        self.text = self.kernel.assembly

    def run(self, text=None, a=None, max_steps=40_000):
        c = torch.full((self.size, self.size), float("nan"))
        dev = cdna.device(self.arch, max_steps=max_steps)
        self.kernel.run(dev, (1, 1, 1), [self.a if a is None else a, self.b, c, self.depth], text)
        return c, dev

    def right(self, text):
        """Whether a text computes the product; exact zeros are asked for too, since a stale integer in an accumulator
        is a denormal that any other sum hides."""
        c, _ = self.run(text)
        if not (c.double() - self.reference).abs().max() < 1e-3:
            return False
        zero, _ = self.run(text, torch.zeros_like(self.a))
        return bool((zero == 0).all())

    def executed(self):
        """Lines of the assembly that ran and may be deleted: (line number, instruction)."""
        c, dev = self.run()
        assert (c.double() - self.reference).abs().max() < 1e-3
        ran = [i for i, n in zip(dev.last.program.instructions, dev.last.counts, strict=True) if n]
        lines = [(k, line.split(";")[0].strip()) for k, line in enumerate(self.text.splitlines())]
        start = next(k for k, line in lines if line == "dot_kernel:")
        code = [(k, line) for k, line in lines if k > start and re.match(r"^[a-z]\w*(\s|$)", line)]
        return [(code[i.index][0], i) for i in ran if DELETABLE.match(i.op)]

    def delete(self, line):
        """None where the result is still right, else "wrong" or the kind of the finding."""
        rows = self.text.splitlines()
        rows[line] = "\ts_nop 0" if not rows[line].strip().startswith("s_nop") else ""
        try:
            return None if self.right("\n".join(rows)) else "wrong"
        except cdna.Finding as found:
            return found.kind
        except cdna.EmulationError:
            return "error"

    def never_used(self, line, ins):
        """Whether an undefined value in place of the result goes unnoticed: nothing that matters reads it."""
        rows, out = self.text.splitlines(), ["\ts_nop 7", "\ts_nop 7"]
        for r in sorted(ins.writes):
            if r < 256:
                out.append(f"\tv_mov_b32_e32 v{r}, v255")
            elif r < S_BASE:
                out.append(f"\tv_accvgpr_write_b32 a{r - 256}, v255")
            elif r < S_BASE + SCC:
                out.append(f"\ts_mov_b32 {NAMES.get(r - S_BASE, f's{r - S_BASE}')}, s95")
            else:
                out.append("\ts_cmp_eq_u32 s95, s95")
        rows[line] = "\n".join([*out, *out[:2]])
        try:
            return self.right("\n".join(rows))
        except cdna.EmulationError:
            return False

    def changes_nothing(self, index):
        """Whether the instruction leaves every register it writes as it was, each time it runs."""
        code = program.Program(self.text, "dot_kernel", self.arch, Checks())
        ins = code.instructions[index]
        same, run = [], ins.run

        def watched(w):
            def state():
                vector = [w.R[r].copy() for r in ins.writes if r < S_BASE]
                return vector, [
                    w.S[r - S_BASE] for r in ins.writes if S_BASE <= r < S_BASE + EXEC and w.s32(r - S_BASE) is not None
                ]

            before = state()
            result = run(w)
            after = state()
            same.append(all((x == y).all() for x, y in zip(before[0], after[0], strict=True)) and before[1] == after[1])
            return result

        ins.run = watched
        key = (self.text, "dot_kernel", self.arch, Checks())
        kept, program._CACHE[key] = program._CACHE.get(key), code
        try:
            self.run()
        finally:
            program._CACHE.pop(key)
            if kept:
                program._CACHE[key] = kept
        return bool(same) and all(same)


def control(subject, every):
    outcomes, survivors = Counter(), []
    for line, ins in subject.executed()[::every]:
        outcome = subject.delete(line)
        family = ins.op if ins.op in ("s_barrier", "s_waitcnt", "s_nop") else "other"
        outcomes[family, outcome] += 1
        harmless = family != "other" or EQUIVALENT.match(ins.text)
        if outcome is None and not (harmless or subject.changes_nothing(ins.index) or subject.never_used(line, ins)):
            survivors.append(ins.where)
        if ins.op == "s_barrier":
            assert outcome == "race", ins.where
        if ins.op == "s_waitcnt":
            assert outcome in ("wait", None), ins.where
        if ins.op == "s_nop":
            assert outcome in ("hazard", None), ins.where
    return outcomes, survivors


def test_deletions_are_noticed(gfx_arch, compile_kernel):
    outcomes, survivors = control(Subject(gfx_arch, compile_kernel, 32, 128), every=3)
    assert not survivors, outcomes
    assert sum(outcomes.values()) > 40


@pytest.mark.slow
def test_every_deletion_is_noticed(gfx_arch, compile_kernel):
    outcomes, survivors = control(Subject(gfx_arch, compile_kernel, 64, 192), every=1)
    assert not survivors, outcomes
    assert outcomes["s_waitcnt", "wait"] >= 5
    assert outcomes["s_barrier", "race"] >= 2
