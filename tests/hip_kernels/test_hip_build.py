"""The build of the code objects: reproducible, up to date, and the same as what is shipped."""

import hashlib

import pytest

from dsv4_rocm_hip import build, compiler, manifest, variants
from dsv4_rocm_hip.variants import Variant

pytest.importorskip("ziglang", reason="compiles HIP: pip install -r .ci/requirements.txt")
SOURCE = """
#include <dsv4/device.hpp>
#include <dsv4/cache_layout.hpp>
struct Params { float* out; const float* x; int count; };
DSV4_KERNEL(256, 1) scale(Params p) {
  const int i = __builtin_amdgcn_workgroup_id_x() * 256 + dsv4::thread();
  if (i < p.count) p.out[i] = p.x[i] * FACTOR;
}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A tree of one op with two variants; builds go to `tmp_path/out`."""
    source = tmp_path / "csrc/scale/scale.hip"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE)
    monkeypatch.setattr(variants, "ROOT", tmp_path)
    return tmp_path, [Variant("scale", f"scale_{k}", (f"FACTOR={k}",)) for k in (2, 3)]


@pytest.fixture(scope="module")
def zig():
    return compiler.find("ziglang")


def test_same_bytes_wherever_the_source_lies(tmp_path, zig):
    built = []
    for folder in ("a", "a much longer/path"):
        path = tmp_path / folder / "scale.hip"
        path.parent.mkdir(parents=True)
        path.write_text(SOURCE)
        built.append(compiler.compile_hip(path, "gfx942", ["FACTOR=2"], compiler=zig))
    assert built[0] == built[1]
    assert str(tmp_path).encode() not in built[0]


def test_only_what_changed_is_built(project, zig):
    root, both = project
    out = root / "out"
    names = {"gfx942/scale_2.co", "gfx942/scale_3.co", "gfx950/scale_2.co", "gfx950/scale_3.co"}

    def run(wanted=both):
        return {path.relative_to(out).as_posix() for path in build.build(zig, out, wanted)}

    assert run() == names
    assert run() == set()
    (out / "gfx942/scale_2.co").write_bytes(b"damaged")
    assert run() == {"gfx942/scale_2.co"}
    both[0].source.write_text(SOURCE.replace("* FACTOR", "+ FACTOR"))
    assert run() == names
    (both[0].source.parent / "part.hpp").write_text("// a header of the op counts too\n")
    assert run() == names
    assert run(both[1:]) == set()
    assert {path.name for path in out.glob("*/*.co")} == {"scale_3.co"}


def test_a_source_that_does_not_compile_is_reported(project, zig):
    root, (variant, _) = project
    variant.source.write_text(SOURCE.replace("const int i", "int unused, i"))
    with pytest.raises(compiler.CompileError, match="unused variable 'unused'"):
        build.build(zig, root / "out", [variant])


def test_hipcc_is_taken_where_it_is(tmp_path, monkeypatch, project):
    """A stand-in that writes down how it was called: ROCm's own compiler makes the object in one step."""
    _, (variant, _) = project
    script = tmp_path / "bin/hipcc"
    script.parent.mkdir()
    lines = ["#!/bin/sh", 'if [ "$1" = --version ]; then echo "AMD clang version 20.0.0git (roc)"; exit; fi']
    lines += [f'echo "$@" > {tmp_path}/called', 'for last; do :; done; printf object > "$last"']
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    found = compiler.find()
    assert (found.kind, found.version) == ("hipcc", "hipcc, clang version 20.0.0git")
    entry, data = build.build_object(variant, "gfx950", found)
    assert data == b"object"
    assert entry.compiler == found.version
    called = (tmp_path / "called").read_text()
    for flag in ("-x hip", "--cuda-device-only", "--offload-arch=gfx950", "-DFACTOR=2", str(variant.source)):
        assert flag in called
    assert compiler.find("ziglang").kind == "ziglang"


def test_no_compiler_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    with pytest.raises(compiler.CompileError, match=r"hipcc is not installed.*pip install ziglang==.*ROCM_PATH"):
        compiler.find("hipcc")


def test_every_shipped_object_is_from_these_sources():
    entries = manifest.read()
    wanted = {(variant.name, arch) for variant in variants.VARIANTS for arch in compiler.ARCHES}
    assert set(entries) == wanted, "run `make hip`"
    for variant in variants.VARIANTS:
        for arch in compiler.ARCHES:
            entry = entries[variant.name, arch]
            assert entry.source_hash == manifest.source_hash(variant), f"{variant.name}: run `make hip`"
            assert entry.sha256 == hashlib.sha256(entry.path().read_bytes()).hexdigest()
    assert {path.relative_to(manifest.FOLDER).as_posix() for path in manifest.FOLDER.glob("*/*.co")} == {
        f"{arch}/{name}.co" for name, arch in wanted
    }


def _variants_to_build():
    """All of them; the first of each op always, the others where there is time."""
    seen = set()
    for variant in variants.VARIANTS:
        slow = [pytest.mark.slow] if variant.op in seen else []
        seen.add(variant.op)
        yield pytest.param(variant, marks=slow, id=variant.name)


@pytest.mark.parametrize("variant", _variants_to_build())
def test_shipped_is_built(zig, variant):
    """The pinned compiler makes the very bytes that are shipped."""
    entries = manifest.read()
    for arch in compiler.ARCHES:
        entry = entries[variant.name, arch]
        if entry.compiler != zig.version:
            pytest.skip(f"{entry.name} was built with {entry.compiler}, here is {zig.version}")
        rebuilt, data = build.build_object(variant, arch, zig)
        assert data == entry.path().read_bytes()
        assert rebuilt == entry
