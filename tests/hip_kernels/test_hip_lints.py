"""What no shipped code object may contain, read from its machine code and its metadata."""

import re
from collections.abc import Iterator

import pytest

from dsv4_rocm.testing import cdna
from dsv4_rocm_hip import compiler, manifest

pytest.importorskip("rocm.llvm", reason="disassembles code objects: pip install -r .ci/requirements.txt")
MOST_REGISTERS = 240  # of a lane where a workgroup has 8 waves or more: two of them on a SIMD
MOST_LDS = {"gfx942": 40 * 1024, "gfx950": 80 * 1024}  # gfx942: beside another workgroup's; gfx950 has 160 KiB
FORBIDDEN = {
    r"flat_(load|store|atomic)\w*": "counts as LDS traffic too; the pointer must say that it is global",
    r"scratch_\w+": "private memory",
    r"s_swappc_b64": "a function that was not inlined",
}


def lint(data: bytes) -> Iterator[str]:
    """Every offence in a code object, with its kernel."""
    loaded = cdna.CodeObject(data)
    for kernel, metadata in loaded.kernels.items():
        text, info = loaded.assembly(kernel), loaded.info(kernel)
        for pattern, why in FORBIDDEN.items():
            if match := re.search(rf"^\t{pattern}", text, re.MULTILINE):
                yield f"{kernel}: {match[0].strip()}: {why}"
        resources = info.resources
        for name in ("private_segment_fixed_size", "vgpr_spill_count", "sgpr_spill_count"):
            if resources[name]:
                yield f"{kernel}: {name} is {resources[name]}"
        if metadata[".max_flat_workgroup_size"] >= 512 and resources["vgpr_count"] > MOST_REGISTERS:
            yield f"{kernel}: {resources['vgpr_count']} registers"
        if info.lds_bytes > MOST_LDS[loaded.arch]:
            yield f"{kernel}: {info.lds_bytes} bytes of LDS"


@pytest.mark.parametrize(("name", "arch"), manifest.read(), ids=str)
def test_shipped_objects_are_clean(name, arch):
    data = manifest.load(name, arch)
    assert cdna.CodeObject(data).arch == arch
    assert list(lint(data)) == []


@pytest.mark.parametrize(("name", "arch"), manifest.read(), ids=str)
def test_shipped_objects_load_anywhere(name, arch):
    """Whatever the GPU's XNACK and SRAMECC settings; each kernel takes one struct by value, as `HipKernel` gives it."""
    data = manifest.load(name, arch)
    flags = int.from_bytes(data[48:52], "little")
    assert (flags >> 8 & 3, flags >> 10 & 3) == (1, 1), "1 is: any setting"
    loaded = cdna.CodeObject(data)
    for kernel in loaded.kernels:
        assert [argument.kind for argument in loaded.info(kernel).arguments] == ["by_value"]


OFFENDERS = {
    "flat_store_dword": """
        DSV4_SHARED std::int32_t* where[64];
        where[dsv4::thread()] = p.out + dsv4::thread();
        dsv4::barrier();
        *where[63 - dsv4::thread() % 64] = 1;""",
    "private_segment_fixed_size is": """
        int own[64];
        for (int k = 0; k < 64; ++k) own[k] = p.out[k];
        p.out[0] = own[p.out[dsv4::thread()] & 63];""",
    "bytes of LDS": """
        DSV4_SHARED int shared[20481];
        shared[p.out[0]] = 1;
        dsv4::barrier();
        p.out[1] = shared[p.out[2]];""",
    "registers": """
        float kept[250];
        #pragma unroll
        for (int k = 0; k < 250; ++k) kept[k] = ((dsv4::Global<float>)p.out)[k * 512 + dsv4::thread()];
        dsv4::barrier();
        #pragma unroll
        for (int k = 0; k < 250; ++k) ((dsv4::Global<float>)p.out)[k * 512 + dsv4::thread()] = kept[249 - k];""",
}


@pytest.mark.parametrize("offence", OFFENDERS)
def test_offences_are_found(tmp_path, offence):
    pytest.importorskip("ziglang", reason="compiles HIP: pip install -r .ci/requirements.txt")
    head = "#include <dsv4/device.hpp>\nstruct Params { std::int32_t* out; };\n"
    source = tmp_path / "offender.hip"
    source.write_text(f"{head}DSV4_KERNEL(512, 2) offender(Params p) {{{OFFENDERS[offence]}}}\n")
    found = list(lint(compiler.compile_hip(source, "gfx950")))
    assert any(offence in line for line in found), found
