"""Lane permutations: DPP controls, ds_swizzle patterns, transposing LDS reads."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from dsv4_rocm.testing.cdna.errors import EmulationError
from dsv4_rocm.testing.cdna.formats import Array

LANES = np.arange(64)
_EVERY = np.ones(64, bool)


def dpp_source(mods: dict[str, Any]) -> tuple[Array, Array]:
    """(source lane [64], whether it exists [64]) of a DPP control."""
    lane = LANES
    row = lane & ~15
    if "quad_perm" in mods:
        return (lane & ~3) + np.array(mods["quad_perm"])[lane & 3], _EVERY
    if "row_shr" in mods:
        source = lane - mods["row_shr"]
        return np.where(source >= row, source, lane), source >= row
    if "row_shl" in mods:
        source = lane + mods["row_shl"]
        return np.where(source < row + 16, source, lane), source < row + 16
    if "row_ror" in mods:
        return row + ((lane - row - mods["row_ror"]) & 15), _EVERY
    if "row_mirror" in mods:
        return row + 15 - (lane - row), _EVERY
    if "row_half_mirror" in mods:
        return (lane & ~7) + 7 - (lane & 7), _EVERY
    if "row_newbcast" in mods:
        return row + mods["row_newbcast"], _EVERY
    if "row_bcast" in mods:
        if mods["row_bcast"] == 15:
            return np.where(lane >= 16, row - 1, lane), lane >= 16
        return np.where(lane >= 32, 31, lane), lane >= 32
    if "wave_shr" in mods or "wave_ror" in mods:
        return (lane - 1) & 63, _EVERY if "wave_ror" in mods else lane >= 1
    if "wave_shl" in mods or "wave_rol" in mods:
        return (lane + 1) & 63, _EVERY if "wave_rol" in mods else lane < 63
    raise EmulationError(f"DPP control {mods} is not known")


def dpp_lanes(mods: dict[str, Any]) -> Array:
    """Lanes row_mask and bank_mask let through."""
    rows, banks = mods.get("row_mask", 15), mods.get("bank_mask", 15)
    out: Array = ((rows >> (LANES // 16)) & 1 == 1) & ((banks >> ((LANES // 4) & 3)) & 1 == 1)
    return out


def _bitmask(and_mask: int, or_mask: int, xor_mask: int) -> Array:
    return (LANES & 32) | ((((LANES & 31) & and_mask) | or_mask) ^ xor_mask)


def swizzle_source(pattern: Any) -> Array:
    """Source lane [64] of ds_swizzle_b32, whose offset is a number or swizzle(...)."""
    lane = LANES
    if isinstance(pattern, int):
        if pattern & 0x8000:
            quad = np.array([(pattern >> (2 * k)) & 3 for k in range(4)])
            return np.asarray((lane & ~3) + quad[lane & 3])
        return _bitmask(pattern & 31, (pattern >> 5) & 31, (pattern >> 10) & 31)
    match = re.match(r"swizzle\((\w+),(.*)\)$", str(pattern))
    if not match:
        raise EmulationError(f"swizzle pattern {pattern!r} is not known")
    kind, args = match[1], [a.strip() for a in match[2].split(",")]
    if kind == "SWAP":
        return lane ^ int(args[0])
    if kind == "REVERSE":
        return lane ^ (int(args[0]) - 1)
    if kind == "BROADCAST":
        return (lane & ~(int(args[0]) - 1)) | int(args[1])
    if kind == "QUAD_PERM":
        quad = np.array([int(a) for a in args])
        return np.asarray((lane & ~3) + quad[lane & 3])
    if kind == "BITMASK_PERM":
        letters = args[0].strip('"')
        weigh = {
            name: sum(1 << (4 - k) for k, letter in enumerate(letters) if letter in name) for name in ("pi", "1", "i")
        }
        return _bitmask(weigh["pi"], weigh["1"], weigh["i"])
    raise EmulationError(f"swizzle {kind} is not known")


def transposed_elements(blocks: Array, bits: int) -> Array:
    """ds_read_b64_tr: bytes [waves * 64, 8] as each lane read them -> uint8 [waves * 64, 8] as each lane gets them.

    Sixteen lanes form a block of `64 / bits` rows; result lane j holds column j.
    """
    per = 64 // bits
    if bits == 4:
        elements = np.stack([blocks & 15, blocks >> 4], 2).reshape(-1, 16)
    else:
        elements = np.ascontiguousarray(blocks).view({16: np.uint16, 8: np.uint8}[bits]).reshape(-1, per)
    groups = elements.reshape(-1, per, 16)  # [block, row, column]
    out = np.ascontiguousarray(groups.transpose(0, 2, 1)).reshape(-1, per)
    if bits == 4:
        result: Array = (out[:, 0::2] | (out[:, 1::2] << 4)).astype(np.uint8)
        return result
    return out.view(np.uint8).reshape(-1, 8)
