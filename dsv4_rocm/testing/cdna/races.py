"""Races on global memory inside a workgroup: two waves touching a byte between barriers, one of them writing."""

from __future__ import annotations

import numpy as np

from dsv4_rocm.testing.cdna.assembly import Instruction
from dsv4_rocm.testing.cdna.errors import Finding
from dsv4_rocm.testing.cdna.formats import I64, Array

Access = tuple[Instruction, Array, int, Array]
COMPACT_AFTER = 4096


class GlobalRaces:
    """Accesses of one workgroup since its last barrier."""

    def __init__(self) -> None:
        self.log: dict[str, list[Access]] = {"read": [], "write": [], "atomic": []}
        self.folded: list[Array] = []  # old reads as dword * 64 + wave, when there were too many to keep

    def note(self, kind: str, ins: Instruction, offset: Array, nbytes: int, lanes: Array) -> None:
        self.log[kind].append((ins, offset, nbytes, lanes >> 6))
        if kind == "read" and len(self.log["read"]) > COMPACT_AFTER:
            self.folded = [np.unique(np.concatenate([*self.folded, *map(_dwords, self.log["read"])]))]
            self.log["read"].clear()

    def barrier(self) -> None:
        """End of an interval between barriers: look for races, then forget it."""
        if self.log["write"] or self.log["atomic"]:
            self._check()
        for accesses in self.log.values():
            accesses.clear()
        self.folded = []

    def _check(self) -> None:
        plain = _flat(self.log["write"])
        atomic = _flat(self.log["atomic"])
        reads = _flat(self.log["read"])
        self._overlap(plain, plain)
        self._overlap(plain, atomic)
        self._overlap(plain, reads)
        self._overlap(atomic, reads)
        if self.folded:
            dword, wave = self.folded[0] >> 6, self.folded[0] & 63
            for k in range(4):  # a folded read stands for its whole dword
                self._overlap(plain, (dword * 4 + k, wave))

    def _overlap(self, first: tuple[Array, Array], second: tuple[Array, Array]) -> None:
        if not len(first[0]) or not len(second[0]):
            return
        order = np.argsort(first[0], kind="stable")
        place, wave = first[0][order], first[1][order]
        low = np.minimum(np.searchsorted(place, second[0], "left"), len(place) - 1)
        high = np.searchsorted(place, second[0], "right") - 1
        hit = place[low] == second[0]
        # all writers of a byte are one wave unless the extremes differ from the other access
        starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]])
        lowest = np.repeat(np.minimum.reduceat(wave, starts), np.diff(np.r_[starts, len(place)]))
        highest = np.repeat(np.maximum.reduceat(wave, starts), np.diff(np.r_[starts, len(place)]))
        bad = hit & ((lowest[low] != second[1]) | (highest[np.maximum(high, 0)] != second[1]))
        if bad.any():
            k = int(np.flatnonzero(bad)[0])
            raise self._explain(int(second[0][k]), (int(lowest[low[k]]), int(highest[low[k]]), int(second[1][k])))

    def _explain(self, byte: int, waves: tuple[int, ...]) -> Finding:
        seen: dict[int, str] = {}
        for kind in ("write", "atomic", "read"):
            for ins, offset, nbytes, wave in self.log[kind]:
                for k in np.flatnonzero((offset <= byte) & (offset + nbytes > byte)):
                    seen.setdefault(int(wave[k]), ins.where)
        text = "; ".join(f"wave {wave}: {where}" for wave, where in sorted(seen.items())[:4])
        return Finding("race", f"waves {sorted(set(waves))} touch a byte of global memory without a barrier: {text}")


def _dwords(access: Access) -> Array:
    _, offset, nbytes, waves = access
    units = (offset >> 2)[:, None] + np.arange(-(-nbytes // 4))
    out: Array = (units * 64 + waves[:, None]).reshape(-1)
    return out


def _flat(accesses: list[Access]) -> tuple[Array, Array]:
    if not accesses:
        return np.zeros(0, I64), np.zeros(0, I64)
    places = [(o[:, None] + np.arange(n)).reshape(-1) for _, o, n, _ in accesses]
    waves = [np.repeat(w, n) for _, _, n, w in accesses]
    return np.concatenate(places), np.concatenate(waves)
