"""One operand of an instruction: register range, constant, or keyword, with its modifiers."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from dsv4_rocm.testing.cdna.errors import EmulationError

INLINE_FLOATS = {
    "0.5": 0x3F000000,
    "-0.5": 0xBF000000,
    "1.0": 0x3F800000,
    "-1.0": 0xBF800000,
    "2.0": 0x40000000,
    "-2.0": 0xC0000000,
    "4.0": 0x40800000,
    "-4.0": 0xC0800000,
    "0.15915494": 0x3E22F983,
    "0.15915494309189532": 0x3E22F983,
    "0.15915493": 0x3E22F983,
}
HALF_OF_INLINE = {
    0x3F000000: 0x3800,
    0xBF000000: 0xB800,
    0x3F800000: 0x3C00,
    0xBF800000: 0xBC00,
    0x40000000: 0x4000,
    0xC0000000: 0xC000,
    0x40800000: 0x4400,
    0xC0800000: 0xC400,
    0x3E22F983: 0x3118,
}
VCC, M0, EXEC, SCC = 106, 124, 126, 128
NAMED = {
    "vcc": (VCC, 2),
    "vcc_lo": (VCC, 1),
    "vcc_hi": (VCC + 1, 1),
    "m0": (M0, 1),
    "exec": (EXEC, 2),
    "exec_lo": (EXEC, 1),
    "exec_hi": (EXEC + 1, 1),
    "flat_scratch": (102, 2),
    "flat_scratch_lo": (102, 1),
    "flat_scratch_hi": (103, 1),
    "xnack_mask": (104, 2),
    "scc": (SCC, 1),
}
ACC_BASE = 256
_SINGLE = re.compile(r"^([vsa])(\d+)$")
_RANGE = re.compile(r"^([vsa]|ttmp)\[(\d+):(\d+)\]$")
_INTEGER = re.compile(r"^-?(0x[0-9a-fA-F]+|\d+)$")
_FLOAT = re.compile(r"^-?(\d*\.\d+(e[+-]?\d+)?|\d+e[+-]?\d+)$")


@dataclass
class Operand:
    """kind: "v" (VGPR; AGPRs count from 256), "s" (SGPR; 128 is SCC), "c" (constant), "off" or "null"."""

    kind: str = "c"
    reg: int = 0
    count: int = 1
    value: int = 0
    negate: bool = False
    absolute: bool = False
    sign_extend: bool = False
    is_float: bool = False

    def plain(self) -> Operand:
        """The operand without its float modifiers."""
        return Operand(self.kind, self.reg, self.count, self.value, is_float=self.is_float)

    @property
    def double_bits(self) -> int:
        """A constant as 64-bit bits: inline floats widen, integers stay."""
        if not self.is_float:
            return self.value & 0xFFFFFFFFFFFFFFFF
        (single,) = struct.unpack("<f", struct.pack("<I", self.value))
        return int(struct.unpack("<Q", struct.pack("<d", single))[0])


def _strip_modifiers(text: str, out: Operand) -> str:
    while True:
        if text.startswith("neg(") and text.endswith(")"):
            out.negate, text = not out.negate, text[4:-1]
        elif text.startswith("abs(") and text.endswith(")"):
            out.absolute, text = True, text[4:-1]
        elif text.startswith("sext(") and text.endswith(")"):
            out.sign_extend, text = True, text[5:-1]
        elif text.startswith("lit(") and text.endswith(")"):
            text = text[4:-1]
        elif text.startswith("|") and text.endswith("|"):
            out.absolute, text = True, text[1:-1]
        elif text.startswith("-") and len(text) > 1 and text[1] in "vsa|(":
            out.negate, text = True, text[1:]
        else:
            return text


def parse_operand(text: str) -> Operand:
    """Read one operand as the assembler prints it. Raises EmulationError on anything unknown."""
    out = Operand()
    text = _strip_modifiers(text.strip(), out)
    if match := _SINGLE.match(text):
        out.kind, out.reg = match[1], int(match[2])
    elif match := _RANGE.match(text):
        out.kind, out.reg = match[1], int(match[2])
        out.count = int(match[3]) - out.reg + 1
    elif text in NAMED:
        out.kind = "s"
        out.reg, out.count = NAMED[text]
    elif text in ("off", "null"):
        out.kind = text
    elif text in INLINE_FLOATS:
        out.value, out.is_float = INLINE_FLOATS[text], True
    elif _INTEGER.match(text):
        out.value = int(text, 0)
    elif _FLOAT.match(text):
        out.value, out.is_float = struct.unpack("<I", struct.pack("<f", float(text)))[0], True
    else:
        raise EmulationError(f"operand {text!r} is not understood")
    if out.kind == "a":
        out.kind, out.reg = "v", out.reg + ACC_BASE
    return out
