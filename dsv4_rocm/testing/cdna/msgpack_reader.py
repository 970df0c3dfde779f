"""The part of msgpack that code-object metadata uses."""

from __future__ import annotations

from typing import Any


def _container(data: bytes, at: int, count: int, kind: str) -> tuple[Any, int]:
    if kind == "text":
        return data[at : at + count].decode(), at + count
    if kind == "list":
        items = []
        for _ in range(count):
            item, at = read(data, at)
            items.append(item)
        return items, at
    pairs = {}
    for _ in range(count):
        key, at = read(data, at)
        pairs[key], at = read(data, at)
    return pairs, at


def read(data: bytes, at: int = 0) -> tuple[Any, int]:
    """One value starting at `at`, and where the next one starts."""
    code = data[at]
    at += 1
    if code < 0x80:
        return code, at
    if code >= 0xE0:
        return code - 256, at
    if code < 0xC0:
        count, kind = (code & 31, "text") if code >= 0xA0 else (code & 15, "list" if code >= 0x90 else "map")
        return _container(data, at, count, kind)
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], at
    if 0xCC <= code <= 0xD3:
        size = 1 << (code & 3)
        return int.from_bytes(data[at : at + size], "big", signed=code >= 0xD0), at + size
    sizes = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
    if code not in sizes:
        raise ValueError(f"msgpack type {code:#x} is not expected in code-object metadata")
    size = sizes[code]
    count = int.from_bytes(data[at : at + size], "big")
    kind = "text" if code <= 0xDB else "list" if code <= 0xDD else "map"
    return _container(data, at + size, count, kind)
