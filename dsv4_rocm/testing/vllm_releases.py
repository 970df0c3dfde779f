"""Python sources of a vLLM release that is not installed: fetched once from PyPI, verified, kept in a cache."""

import hashlib
import importlib.util
import os
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Release:
    """A source distribution on PyPI."""

    version: str
    url: str
    sha256: str


V0_33 = Release(
    "0.33.0",
    "https://files.pythonhosted.org/packages/f7/25/aa5684e9c59d6fc75f78926b7f15e8d9adc7de2d9e6e7575b80776ad8169/vllm-0.33.0.tar.gz",
    "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
)


def installed() -> Path:
    """The directory that holds the installed package `vllm`; does not import it."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("vLLM is not installed; make setup installs it")
    return Path(spec.origin).parents[1]


def cache_directory() -> Path:
    """Where fetched sources are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dsv4_rocm"


def sources(release: Release) -> Path:
    """A directory that holds the release's package `vllm`; fetched when it is not there yet.

    Raises:
        OSError: it cannot be fetched.
        ValueError: what came is not the pinned file.
    """
    target = cache_directory() / f"vllm-{release.version}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        archive = Path(scratch) / "sdist.tar.gz"
        with urllib.request.urlopen(release.url, timeout=60) as response:
            archive.write_bytes(response.read())
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != release.sha256:
            raise ValueError(f"{release.url}: sha256 must be {release.sha256}, got {found}")
        root = f"vllm-{release.version}"
        with tarfile.open(archive) as tar:
            members = [member for member in tar if member.name.startswith(f"{root}/vllm/")]
            tar.extractall(scratch, members, filter="data")
        (Path(scratch) / root).rename(target)
    return target


def runnable(release: Release, directory: Path) -> Path:
    """A directory for PYTHONPATH from which the host runs this release with the installed one's compiled extensions.

    Pure Python comes from the release; the extensions, whose functions for CPUs are the same, from what is installed.
    """
    package = directory / "vllm"
    package.mkdir(parents=True)
    for entry in (sources(release) / "vllm").iterdir():
        (package / entry.name).symlink_to(entry)
    for extension in (installed() / "vllm").glob("*.so"):
        (package / extension.name).symlink_to(extension)
    metadata = directory / f"vllm-{release.version}+cpu.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release.version}+cpu\n")
    return directory
