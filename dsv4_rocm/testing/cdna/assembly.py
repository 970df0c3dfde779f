"""Assembly text (a compiler's or a disassembler's) to instructions, labels and kernel directives."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsv4_rocm.testing.cdna.operands import Operand

if TYPE_CHECKING:
    from dsv4_rocm.testing.cdna.waves import Group

Modifier = Any  # an int, a list of ints, or a name such as "BYTE_0"
Run = Callable[["Group"], Any]

_COMMA = re.compile(r",\s*(?![^\[\(]*[\]\)])")
_DIRECTIVE = re.compile(r"^\s*\.amdhsa_(\w+)\s+(\S+)")
_FILE = re.compile(r'^\.file\s+(\d+)\s+(?:"([^"]*)"\s+)?"([^"]*)"')
_MODIFIER = re.compile(
    r"^(offset|offset0|offset1|op_sel|op_sel_hi|neg_lo|neg_hi|src0_sel|src1_sel|dst_sel|dst_unused|bitop3|cbsz|blgp"
    r"|abid|quad_perm|row_shl|row_shr|row_ror|row_bcast|row_newbcast|row_mask|bank_mask|bound_ctrl|wave_shl|wave_rol"
    r"|wave_shr|wave_ror|fmt|mul|div|byte_sel|matrix_a_fmt|matrix_b_fmt):(\[[^\]]*\]|\S+)$"
)
_FLAGS = frozenset(
    [
        "off",
        "offen",
        "idxen",
        "lds",
        "glc",
        "slc",
        "sc0",
        "sc1",
        "nt",
        "gds",
        "clamp",
        "row_mirror",
        "row_half_mirror",
        "tfe",
        "scc",
    ]
)
_TOKEN = re.compile(r"\w+:\[[^\]]*\]|\S+\[[^\]]*\]|hwreg\([^)]*\)|gpr_idx\([^)]*\)|\S+")
_MNEMONIC = re.compile(r"^([a-z]\w*)\s*(.*)$")


@dataclass(eq=False)
class Instruction:
    """One instruction, its operands, what it touches (filled by `effects`) and how to run it (by `program`)."""

    op: str
    text: str
    index: int
    operands: list[str]
    mods: dict[str, Modifier]
    source: tuple[str, int] | None = None
    parsed: list[Operand] = field(default_factory=list)
    family: str = ""
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    touch: frozenset[int] = frozenset()
    run: Run = field(default=lambda w: None, repr=False)
    problem: str = ""

    def __repr__(self) -> str:
        return self.text

    def flag(self, name: str) -> bool:
        return bool(self.mods.get(name))

    @property
    def where(self) -> str:
        line = f"{self.source[0]}:{self.source[1]} " if self.source else ""
        return f"{line}#{self.index} `{self.text}`"


@dataclass
class Assembly:
    """A parsed kernel: instructions in order, label -> index, and the .amdhsa_ directives of its descriptor."""

    instructions: list[Instruction]
    labels: dict[str, int]
    descriptor: dict[str, int]


def _modifier_value(text: str) -> Modifier:
    if text.startswith("["):
        return [int(x) for x in text[1:-1].split(",")]
    try:
        return int(text, 0)
    except ValueError:
        return text


def parse_line(text: str, index: int, source: tuple[str, int] | None = None) -> Instruction | None:
    """One line of assembly without comments, or None where it is no instruction."""
    match = _MNEMONIC.match(text)
    if not match:
        return None
    out = Instruction(match[1], text, index, [], {}, source)
    for part in _COMMA.split(match[2]) if match[2] else []:
        # the first token of a part is an operand, later blank-separated ones are modifiers
        for position, token in enumerate(_TOKEN.findall(part.strip())):
            keyword = position == 0 and token in ("off", "scc")
            if found := _MODIFIER.match(token):
                out.mods[found[1]] = _modifier_value(found[2])
            elif token in _FLAGS and not keyword:
                out.mods[token] = 1
            else:
                out.operands.append(token)
    return out


class _Reader:
    def __init__(self, kernel: str | None) -> None:
        self.kernel = kernel
        self.out = Assembly([], {}, {})
        self.files: dict[int, str] = {}
        self.source: tuple[str, int] | None = None
        self.described: str | None = None
        self.started = self.ended = False

    def line(self, raw: str) -> None:
        if ".amdhsa_kernel " in raw:
            self.described = raw.split()[-1]
        if match := _DIRECTIVE.match(raw):
            if self.kernel is None or self.described in (None, self.kernel):
                self._directive(match[1], match[2])
            return
        text = raw.split(";")[0].split("//")[0].strip()
        if text.startswith("."):
            self._dot(text)
        elif text.endswith(":"):
            self._label(text[:-1])
        elif text and self.started and not self.ended:
            found = parse_line(text, len(self.out.instructions), self.source)
            if found:
                self.out.instructions.append(found)

    def _directive(self, name: str, value: str) -> None:
        try:
            self.out.descriptor[name] = int(value, 0)
        except ValueError:  # an expression over symbols: resource counts only, nothing the run needs
            self.out.descriptor.pop(name, None)

    def _dot(self, text: str) -> None:
        if text.endswith(":"):
            self._label(text[:-1])
        elif match := _FILE.match(text):
            self.files[int(match[1])] = match[3]
        elif text.startswith(".loc"):
            parts = text.split()
            self.source = (self.files.get(int(parts[1]), "?"), int(parts[2]))
        elif text.startswith(".section") and self.started:
            self.ended = True
        elif text.startswith(".text"):
            self.ended = False

    def _label(self, name: str) -> None:
        self.out.labels[name] = len(self.out.instructions)
        if self.kernel is None or name == self.kernel:
            self.started = True
        elif name.startswith(".Lfunc_end"):
            self.started = False


def parse(text: str, kernel: str | None = None) -> Assembly:
    """Read the code of `kernel` (or everything from the first label on) out of assembly text."""
    reader = _Reader(kernel)
    for line in text.splitlines():
        reader.line(line)
    return reader.out
