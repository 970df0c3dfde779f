"""What lies under code_objects/: by whom and from which sources each code object was built."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from dsv4_rocm_hip.compiler import FLAGS, INCLUDE
from dsv4_rocm_hip.variants import VARIANTS, Variant

FOLDER = Path(__file__).parent / "code_objects"
FILE = "manifest.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """One code object that was built.

    Attributes:
        name: of its variant.
        arch: "gfx942" or "gfx950".
        defines: macros it was compiled with.
        compiler: version of the compiler.
        source_hash: over its sources, all headers, the macros and the flags (`source_hash`).
        sha256: of the code object.
    """

    name: str
    arch: str
    defines: tuple[str, ...]
    compiler: str
    source_hash: str
    sha256: str

    def path(self, folder: Path = FOLDER) -> Path:
        return folder / self.arch / f"{self.name}.co"


def source_hash(variant: Variant) -> str:
    """SHA-256 over the files under csrc/<op>/ and include/ (names and contents), the macros and the flags."""
    digest = hashlib.sha256()
    for root in (variant.source.parent, INCLUDE):
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            text = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    digest.update("\n".join((*variant.defines, *FLAGS)).encode())
    return digest.hexdigest()


def read(folder: Path = FOLDER) -> dict[tuple[str, str], Entry]:
    """The entries by (name, arch); empty where nothing was built."""
    path = folder / FILE
    if not path.is_file():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))
    entries = [Entry(**row | {"defines": tuple(row["defines"])}) for row in rows]
    return {(entry.name, entry.arch): entry for entry in entries}


def write(entries: Sequence[Entry], folder: Path = FOLDER) -> None:
    rows = [asdict(entry) for entry in sorted(entries, key=lambda entry: (entry.name, entry.arch))]
    (folder / FILE).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


@cache
def shipped() -> dict[tuple[str, str], Entry]:
    """`read` of what is installed, once a process."""
    return read()


def missing(name: str, arch: str) -> str | None:
    """Why the code object `name` cannot be had for `arch`, with what to do; None when it is there."""
    if (name, arch) in shipped():
        return None
    known = {variant.name for variant in VARIANTS}
    if name not in known:
        return f"there is no variant {name}; known: {', '.join(sorted(known))}"
    arches = sorted({entry.arch for entry in shipped().values() if entry.name == name})
    there = f"{name} was built for {', '.join(arches)}" if arches else f"{name} was not built"
    return f"{there}, not for {arch}: run `make hip` in a checkout"


def load(name: str, arch: str) -> bytes:
    """The shipped code object.

    Raises:
        FileNotFoundError: it was not built, or is not what the manifest says.
    """
    reason = missing(name, arch)
    if reason:
        raise FileNotFoundError(reason)
    entry = shipped()[name, arch]
    data = entry.path().read_bytes() if entry.path().is_file() else b""
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise FileNotFoundError(f"{entry.path()} is not what {FILE} says: run `make hip` in a checkout")
    return data
