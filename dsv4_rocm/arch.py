"""Facts about the GPU architectures we serve on, and how the one in this machine is found."""

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from dsv4_rocm import envs


class Fp8Encoding(Enum):
    """What the hardware's e4m3 conversions mean; the cache bytes are E4M3FN everywhere."""

    E4M3FN = "e4m3fn"
    E4M3FNUZ = "e4m3fnuz"


class Vendor(Enum):
    """Whose driver and runtime the device needs."""

    AMD = "amd"
    NVIDIA = "nvidia"
    HOST = "host"


class MatrixCore(Enum):
    """The family of matrix instructions."""

    CDNA3_MFMA = "cdna3-mfma"
    CDNA4_MFMA = "cdna4-mfma"
    WGMMA = "wgmma"
    TCGEN05 = "tcgen05"
    MMA_SYNC = "mma.sync"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class GpuArch:
    """Facts of one architecture. Code asks these, never the name.

    Attributes:
        name: compiler target (`gfx942`, `sm90`) or `host`.
        fp8: what the native e4m3 conversions mean.
        wave_size: lanes of a wave or warp.
        shared_bytes: LDS of a workgroup, or shared memory a CTA can opt in to, in bytes.
        matrix_core: family of matrix instructions.
        compute_units: CUs or SMs of the product in full (no partition), where one number holds.
        products: names a user knows.
    """

    name: str
    vendor: Vendor
    fp8: Fp8Encoding
    wave_size: int
    shared_bytes: int
    matrix_core: MatrixCore
    compute_units: int | None = None
    products: tuple[str, ...] = ()

    @property
    def multiplies_mxfp4(self) -> bool:
        """Whether matrix instructions take e2m1 values with e8m0 scales."""
        return self.matrix_core in (MatrixCore.CDNA4_MFMA, MatrixCore.TCGEN05)

    def __post_init__(self) -> None:
        if self.vendor is not Vendor.HOST and (self.wave_size not in (32, 64) or self.shared_bytes <= 0):
            raise ValueError(f"{self.name}: wave size is 32 or 64 and shared memory is not empty, got {self}")


KIB = 1024
GFX942 = GpuArch(
    "gfx942", Vendor.AMD, Fp8Encoding.E4M3FNUZ, 64, 64 * KIB, MatrixCore.CDNA3_MFMA, 304, ("MI325X", "MI300X")
)
GFX950 = GpuArch(
    "gfx950", Vendor.AMD, Fp8Encoding.E4M3FN, 64, 160 * KIB, MatrixCore.CDNA4_MFMA, 256, ("MI355X", "MI350X")
)
SM90 = GpuArch("sm90", Vendor.NVIDIA, Fp8Encoding.E4M3FN, 32, 227 * KIB, MatrixCore.WGMMA, 132, ("H200", "H100"))
SM100 = GpuArch("sm100", Vendor.NVIDIA, Fp8Encoding.E4M3FN, 32, 227 * KIB, MatrixCore.TCGEN05, 148, ("B200", "GB200"))
SM103 = GpuArch("sm103", Vendor.NVIDIA, Fp8Encoding.E4M3FN, 32, 227 * KIB, MatrixCore.TCGEN05, None, ("B300", "GB300"))
SM120 = GpuArch("sm120", Vendor.NVIDIA, Fp8Encoding.E4M3FN, 32, 99 * KIB, MatrixCore.MMA_SYNC, 188, ("RTX PRO 6000",))
HOST = GpuArch("host", Vendor.HOST, Fp8Encoding.E4M3FN, 1, 0, MatrixCore.NONE, None, ("any x86-64 or arm64 CPU",))

ARCHS = {arch.name: arch for arch in (GFX942, GFX950, SM90, SM100, SM103, SM120, HOST)}


@dataclass(frozen=True, slots=True)
class Detection:
    """What was found, and what was looked at on the way.

    Attributes:
        arch: the architecture; `HOST` when no GPU was found, None when there is a GPU we have no code for.
        source: where it was seen (`kfd /sys/...`, `amdsmi`, `nvml`, `no GPU`).
        device_count: devices of that architecture.
        rejected: what was looked at and not taken, each with the reason.
    """

    arch: GpuArch | None
    source: str
    device_count: int = 0
    rejected: tuple[str, ...] = ()


def get(name: str) -> GpuArch:
    """The architecture called `name`.

    Raises:
        ValueError: no such architecture.
    """
    if name not in ARCHS:
        raise ValueError(f"unknown architecture {name!r}; known: {', '.join(ARCHS)}")
    return ARCHS[name]


def gfx_name(target_version: int) -> str:
    """The compiler's name of a KFD `gfx_target_version`: 90402 -> gfx942, 110501 -> gfx1151, 90010 -> gfx90a."""
    major, minor, step = target_version // 10000, target_version // 100 % 100, target_version % 100
    return f"gfx{major}{minor:x}{step:x}"


def detect() -> Detection:
    """Find the GPU: KFD sysfs, then amdsmi, then NVML, else the host. Never raises; cached per process."""
    return _probe(envs.kfd_root())


def current() -> GpuArch:
    """The architecture this process computes on: what was pinned, else what is found, else the host's.

    A host that emulates a GPU's kernels chooses ops as that GPU would.
    """
    found = _pinned or detect().arch or HOST
    emulated = envs.emulated_arch()
    return get(emulated) if emulated and found is HOST else found


def pin(arch: GpuArch | str | None) -> None:
    """Say what this process computes on, whatever the machine holds (a CPU build of vLLM on a GPU machine).

    None lifts it.
    """
    global _pinned
    _pinned = get(arch) if isinstance(arch, str) else arch


@contextmanager
def override(arch: GpuArch | str) -> Iterator[GpuArch]:
    """Compute on `arch` for the length of a `with` block, as far as `current()` is asked."""
    before = _pinned
    pin(arch)
    try:
        assert _pinned is not None
        yield _pinned
    finally:
        pin(before)


_pinned: GpuArch | None = None


@functools.lru_cache(maxsize=8)
def _probe(kfd_root: Path) -> Detection:
    rejected: list[str] = []
    for probe in (functools.partial(_from_kfd, kfd_root), _from_amdsmi, _from_nvml):
        found = _guarded(probe, rejected)
        if found:
            return _pick(found[0], found[1], rejected)
    return Detection(HOST, "no GPU", 0, tuple(rejected))


def _guarded(probe: Any, rejected: list[str]) -> tuple[str, list[str]] | None:
    name = getattr(probe, "func", probe).__name__.removeprefix("_from_")
    try:
        source, names, reasons = probe()
    except (Exception, SystemExit) as error:
        rejected.append(f"{name}: {type(error).__name__}: {error}")
        return None
    rejected += [f"{name}: {reason}" for reason in reasons]
    return (source, names) if names else None


def _pick(source: str, names: list[str], rejected: list[str]) -> Detection:
    known = [name for name in names if name in ARCHS]
    for name in dict.fromkeys(names):
        if name not in ARCHS:
            supported = ", ".join(n for n in ARCHS if n != "host")
            rejected.append(f"{source}: {name} is not supported (supported: {supported})")
    if not known:
        return Detection(None, source, 0, tuple(rejected))
    best = max(dict.fromkeys(known), key=known.count)
    rejected += [f"{source}: {name} stands beside {best}; one server uses one" for name in set(known) - {best}]
    return Detection(ARCHS[best], source, known.count(best), tuple(rejected))


def _from_kfd(root: Path) -> tuple[str, list[str], list[str]]:
    source = f"kfd {root}"
    nodes = root / "nodes"
    if not nodes.is_dir():
        return source, [], [f"{nodes} does not exist (no amdgpu driver, or not visible in this container)"]
    names, reasons = [], []
    for node in sorted(nodes.iterdir(), key=lambda p: (len(p.name), p.name)):
        try:
            text = (node / "properties").read_text()
        except OSError as error:
            # The kernel hides the nodes of devices that a container's cgroup does not hold.
            reasons.append(f"node {node.name}: {error.strerror}")
            continue
        properties = dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) == 2)
        version = properties.get("gfx_target_version", "0").strip()
        if not version.isdigit():
            reasons.append(f"node {node.name}: gfx_target_version is {version!r}, not a number")
        elif int(version):
            names.append(gfx_name(int(version)))
    if not names and not reasons:
        reasons.append(f"{nodes} holds CPU nodes only")
    return source, names, reasons


def _from_amdsmi() -> tuple[str, list[str], list[str]]:
    try:
        # Its import runs the driver library: a broken one raises KeyError, OSError and more.
        import amdsmi
    except ImportError as error:
        return "amdsmi", [], [f"not importable ({error})"]
    amdsmi.amdsmi_init()
    try:
        handles = amdsmi.amdsmi_get_processor_handles()
        names = [str(amdsmi.amdsmi_get_gpu_asic_info(h)["target_graphics_version"]) for h in handles]
    finally:
        with suppress(Exception):
            amdsmi.amdsmi_shut_down()
    return "amdsmi", names, [] if names else ["no AMD GPU"]


def _from_nvml() -> tuple[str, list[str], list[str]]:
    # The library itself: the Python binding is not always installed, and vLLM's copy costs importing vLLM.
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return "nvml", [], [f"no NVIDIA driver ({error})"]
    if status := nvml.nvmlInit_v2():
        return "nvml", [], [f"nvmlInit failed with status {status}"]
    try:
        count = ctypes.c_uint(0)
        _checked(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount")
        names = [_compute_capability(nvml, index) for index in range(count.value)]
    finally:
        nvml.nvmlShutdown()
    return "nvml", names, [] if names else ["no NVIDIA GPU"]


def _compute_capability(nvml: Any, index: int) -> str:
    handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    _checked(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)), "nvmlDeviceGetHandleByIndex")
    status = nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    _checked(status, "nvmlDeviceGetCudaComputeCapability")
    return f"sm{major.value}{minor.value}"


def _checked(status: int, call: str) -> None:
    if status:
        raise OSError(f"{call} failed with status {status}")
