"""Clashes between servers that work together: ports, roles, devices, connectors, and the router in front of them."""

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from dsv4_rocm.arch import Vendor
from dsv4_rocm.recipes.command import DEFAULT_PORT
from dsv4_rocm.recipes.lint import Finding
from dsv4_rocm.recipes.products import arch_of
from dsv4_rocm.recipes.subject import VISIBLE, Answer, Subject

SIDE_PORTS = {"VLLM_MOONCAKE_BOOTSTRAP_PORT": 8998, "VLLM_NIXL_SIDE_CHANNEL_PORT": 5600}
_SAME = ("--kv-cache-dtype", "--block-size", "--tokenizer-mode", "--speculative-config")


def lint_pair(
    subjects: Sequence[Subject], answers: Sequence[Answer], router: Sequence[str] | None = None
) -> list[Finding]:
    """What is wrong with servers on one machine that pass KV to each other.

    Args:
        subjects: two or more serve commands.
        answers: what vLLM says of each.
        router: arguments of vllm-router, if one is there.
    """
    found = [*_ports(subjects), *_devices(subjects), *_transfer(subjects), *_same(subjects)]
    if router is not None:
        found += _router(subjects, answers, list(router))
    return found


def _port(subject: Subject) -> int:
    return int(subject.value("--port") or DEFAULT_PORT)


def _ports(subjects: Sequence[Subject]) -> Iterator[Finding]:
    used: dict[int, str] = {}
    for subject in subjects:
        port = _port(subject)
        if port in used:
            yield Finding(
                "error", "ports", f"{subject.key} and {used[port]} both serve on port {port}; give one --port"
            )
        used.setdefault(port, subject.key)
    connectors = {str(_connector(subject)) for subject in subjects}
    for name, default in SIDE_PORTS.items():
        kinds = {kind for connector in connectors if (kind := _kind(connector)) is not None}
        if not any(kind in name for kind in kinds):
            continue
        ports: dict[int, str] = {}
        for subject in subjects:
            port = int(subject.env.get(name, default))
            if port in ports:
                text = f"{subject.key} and {ports[port]} both use {name}={port}; set another for one of them"
                yield Finding("error", "ports", text)
            ports.setdefault(port, subject.key)


def _devices(subjects: Sequence[Subject]) -> Iterator[Finding]:
    owner: dict[str, str] = {}
    for subject in subjects:
        shown = next((subject.env[name] for name in VISIBLE if name in subject.env), None)
        if shown is None:
            amd = arch_of(subject.gpu).vendor is Vendor.AMD
            name = "HIP_VISIBLE_DEVICES" if amd else "CUDA_VISIBLE_DEVICES"
            yield Finding("error", "devices", f"{subject.key} sees all GPUs, those of the other server too; set {name}")
            continue
        for device in shown.split(","):
            if device in owner:
                yield Finding("error", "devices", f"{subject.key} and {owner[device]} both use GPU {device}")
            owner.setdefault(device, subject.key)


def _transfer(subjects: Sequence[Subject]) -> Iterator[Finding]:
    connectors = {subject.key: _connector(subject) for subject in subjects}
    if None in connectors.values():
        missing = ", ".join(key for key, name in connectors.items() if name is None)
        yield Finding("error", "roles", f"{missing}: --kv-transfer-config is missing, so no KV is passed on")
    elif len(set(connectors.values())) > 1:
        text = ", ".join(f"{key} {name}" for key, name in connectors.items())
        yield Finding("error", "roles", f"the servers use different connectors: {text}")
    roles = [subject.json("--kv-transfer-config").get("kv_role") for subject in subjects]
    if roles and set(roles) in ({"kv_producer"}, {"kv_consumer"}):
        yield Finding(
            "error", "roles", f"all servers are {roles[0]}; one is kv_producer and one kv_consumer, or both kv_both"
        )


def _same(subjects: Sequence[Subject]) -> Iterator[Finding]:
    models = {subject.model for subject in subjects}
    if len(models) > 1:
        yield Finding("error", "same", f"the servers must serve one model, got {', '.join(sorted(models))}")
    for flag in _SAME:
        values = {subject.value(flag) for subject in subjects}
        if len(values) > 1:
            shown = ", ".join(sorted(str(value) for value in values))
            yield Finding("error", "same", f"{flag} must be equal on both sides, got {shown}")


def _router(subjects: Sequence[Subject], answers: Sequence[Answer], router: list[str]) -> Iterator[Finding]:
    served = {_port(subject): subject.key for subject in subjects}
    targets = [router[index + 1] for index, word in enumerate(router[:-1]) if word in ("--prefill", "--decode")]
    for url in targets:
        if urlsplit(url).port not in served:
            yield Finding("error", "router", f"the router asks {url}, where none of the servers listens")
    asked = {urlsplit(url).port for url in targets}
    for port, key in served.items():
        if port not in asked:
            yield Finding("error", "router", f"the router does not ask {key} on port {port}")
    own = _option(router, "--port")
    if own is not None and int(own) in served:
        yield Finding("error", "ports", f"the router and {served[int(own)]} both listen on port {own}")
    kind = _option(router, "--kv-connector")
    for subject in subjects:
        expected = _kind(_connector(subject))
        if kind is not None and expected is not None and kind.upper() != expected:
            yield Finding("error", "router", f"the router passes KV by {kind}, and {subject.key} by {expected.lower()}")
    size = int(_option(router, "--intra-node-data-parallel-size") or 1)
    for subject, answer in zip(subjects, answers, strict=True):
        if answer.config is not None and answer.config["data"] != size:
            text = f"--intra-node-data-parallel-size {size}, and {subject.key} has data parallel size"
            yield Finding("error", "router", f"{text} {answer.config['data']}")


def _connector(subject: Subject) -> str | None:
    name = subject.json("--kv-transfer-config").get("kv_connector")
    return None if name is None else str(name)


def _kind(connector: str | None) -> str | None:
    return next((kind for kind in ("MOONCAKE", "NIXL") if kind in (connector or "").upper()), None)


def _option(words: Sequence[str], flag: str) -> str | None:
    return next((words[index + 1] for index, word in enumerate(words[:-1]) if word == flag), None)
