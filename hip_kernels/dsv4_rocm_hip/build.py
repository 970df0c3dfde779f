"""Build the code objects: `python -m dsv4_rocm_hip.build` in a checkout (`make hip`)."""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from dsv4_rocm_hip import manifest
from dsv4_rocm_hip.compiler import ARCHES, CompileError, Compiler, compile_hip, find
from dsv4_rocm_hip.manifest import FOLDER, Entry
from dsv4_rocm_hip.variants import VARIANTS, Variant

WARNINGS = ("-Wall", "-Wextra", "-Werror")


def build_object(variant: Variant, arch: str, compiler: Compiler) -> tuple[Entry, bytes]:
    """Compile one variant for one architecture."""
    data = compile_hip(variant.source, arch, variant.defines, flags=WARNINGS, compiler=compiler)
    digest = hashlib.sha256(data).hexdigest()
    source = manifest.source_hash(variant)
    return Entry(variant.name, arch, variant.defines, compiler.version, source, digest), data


def is_current(variant: Variant, entry: Entry | None, compiler: str, folder: Path = FOLDER) -> bool:
    """Whether an object was built from the sources as they are, by this compiler version, and is still there."""
    if entry is None or entry.compiler != compiler or entry.source_hash != manifest.source_hash(variant):
        return False
    path = entry.path(folder)
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == entry.sha256


def build(
    compiler: Compiler, folder: Path = FOLDER, variants: Sequence[Variant] = VARIANTS, force: bool = False
) -> list[Path]:
    """Bring `folder` up to date with the sources, and drop what no variant asks for.

    Args:
        compiler: from `compiler.find`.
        folder: where the code objects and their manifest lie.
        variants: what should be there.
        force: build all, also what is current.

    Returns:
        The code objects that were written.

    Raises:
        CompileError: a source does not compile; what was built before it is kept.
    """
    before, entries, written = manifest.read(folder), [], []
    for variant in variants:
        for arch in ARCHES:
            entry = before.get((variant.name, arch))
            if entry is None or force or not is_current(variant, entry, compiler.version, folder):
                entry, data = build_object(variant, arch, compiler)
                entry.path(folder).parent.mkdir(parents=True, exist_ok=True)
                entry.path(folder).write_bytes(data)
                written.append(entry.path(folder))
            entries.append(entry)
    manifest.write(entries, folder)
    wanted = {entry.path(folder) for entry in entries}
    for path in set(folder.glob("*/*.co")) - wanted:
        path.unlink()
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 where a source does not compile."""
    parser = argparse.ArgumentParser(prog="python -m dsv4_rocm_hip.build", description=__doc__)
    parser.add_argument("--compiler", choices=("hipcc", "ziglang"), help="default: hipcc where there is one")
    parser.add_argument("--force", action="store_true", help="build also what is up to date")
    options = parser.parse_args(arguments)
    try:
        compiler = find(options.compiler)
        written = build(compiler, force=options.force)
    except CompileError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for path in written:
        sys.stdout.write(f"{path.parent.name}/{path.name}  {path.stat().st_size} bytes\n")
    sys.stdout.write(f"{len(written)} of {len(ARCHES) * len(VARIANTS)} code objects built with {compiler.version}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
