"""What a server says about itself: the choices per op, the KV groups, the number of blocks."""

import re

from dsv4_rocm.testing.client import Client

_SOURCE = re.compile(r"^.*\[[\w./]+:\d+\]\s?")  # (Worker pid=1) INFO 11-29 16:04:07 [selection.py:107]
_OPS_TITLE = "dsv4_rocm ops on "


def message_of(line: str) -> str:
    """A log line without process, level, time and source."""
    return _SOURCE.sub("", line).strip()


def lines_of(log: str, marker: str) -> list[str]:
    """The rest of every line after `marker`, each different one once."""
    found = [line.split(marker, 1)[1].strip() for line in log.splitlines() if marker in line]
    return list(dict.fromkeys(found))


def ops_of(log: str) -> dict[str, str]:
    """Op -> implementation (and the reasons against faster ones) from the start-up table; empty if there is none."""
    ops: dict[str, str] = {}
    inside = False
    for line in log.splitlines():
        text = _SOURCE.sub("", line)
        if _OPS_TITLE in line:
            inside = True
        elif inside and (row := re.fullmatch(r"  (\w+) +(\S.*)", text)):
            ops[row[1]] = row[2]
        else:
            inside = False
    return ops


def groups_of(log: str) -> tuple[int, ...]:
    """Tokens per page of every KV cache group, in vLLM's order."""
    found = lines_of(log, "kv cache group sizes ")
    return tuple(int(size) for size in re.findall(r"\d+", found[0])) if found else ()


def blocks_of(client: Client) -> int:
    """Blocks in the KV pool, from the server's metrics.

    Raises:
        ValueError: the metrics do not say.
    """
    found = re.search(r'vllm:cache_config_info\{[^}]*\bnum_gpu_blocks="(\d+)"', client.text("/metrics"))
    if found is None:
        raise ValueError("/metrics has no vllm:cache_config_info with num_gpu_blocks")
    return int(found[1])
