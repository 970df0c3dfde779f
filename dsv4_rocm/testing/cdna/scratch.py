"""Scratch memory of a workgroup: private bytes of each lane, and which of them were written."""

from __future__ import annotations

import numpy as np

from dsv4_rocm.testing.cdna.errors import Finding
from dsv4_rocm.testing.cdna.formats import U8, Array
from dsv4_rocm.testing.cdna.memory import ONES, as_words, from_words, plan, views, zeros


class Scratch:
    """`size` bytes for each of `lanes` lanes."""

    def __init__(self, size: int, lanes: int, track: bool) -> None:
        self.size, self.track = size, track
        self.pitch = -(-size // 16) * 16
        self.views = views(zeros(self.pitch * lanes))
        self.defined = zeros(self.pitch * lanes if track else 0)
        self.defined_views = views(self.defined)

    def _place(self, address: Array, nbytes: int, lanes: Array, what: str) -> Array:
        bad = (address < 0) | (address + nbytes > self.size)
        if bad.any():
            k = int(np.flatnonzero(bad)[0])
            text = (
                f"scratch {what} of {nbytes} bytes at {int(address[k]):#x} is outside the {self.size} bytes of a lane"
            )
            raise Finding("bounds", text, int(lanes[k]))
        result: Array = address + lanes * self.pitch
        return result

    def load(self, address: Array, nbytes: int, lanes: Array) -> tuple[Array, Array | None]:
        """Values and undefined bits, like `Lds.load`."""
        width, index = plan(self._place(address, nbytes, lanes, "read"), nbytes)
        bits = None
        if self.track:
            marks = self.defined_views[width][index]
            if not (marks.view(U8) == 1).all():
                bits = ~as_words((marks.view(U8) * U8(255)).view(marks.dtype), nbytes)
        return as_words(self.views[width][index], nbytes), bits

    def store(self, address: Array, words: Array, nbytes: int, lanes: Array, undefined: Array | None = None) -> None:
        place = self._place(address, nbytes, lanes, "write")
        width, index = plan(place, nbytes)
        self.views[width][index] = from_words(words, nbytes, width)
        if not self.track:
            return
        if undefined is None:
            self.defined_views[width][index] = ONES[width]
        else:
            marks = undefined.reshape(len(place), -1).view(U8)[:, :nbytes] == 0
            self.defined[place[:, None] + np.arange(nbytes)] = marks
