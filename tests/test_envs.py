"""DSV4_ROCM_* variables: read in one place, unknown names reported."""

import re
from pathlib import Path

import pytest

from dsv4_rocm import envs

ROOT = Path(__file__).resolve().parents[1]
OPS = ("sparse_attention", "indexer_select")


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    import os

    for name in [name for name in os.environ if name.startswith("DSV4_ROCM_")]:
        monkeypatch.delenv(name)


def test_defaults():
    assert envs.kfd_root() == envs.DEFAULT_KFD_ROOT
    assert envs.forced_impl("sparse_attention") is None
    assert envs.allow_untested() is False
    assert envs.unknown() == []


def test_forced_implementation(monkeypatch):
    monkeypatch.setenv("DSV4_ROCM_IMPL_SPARSE_ATTENTION", "reference")
    assert envs.forced_impl("sparse_attention") == "reference"
    assert envs.unknown(OPS) == []


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_flag(monkeypatch, value, expected):
    monkeypatch.setenv("DSV4_ROCM_ALLOW_UNTESTED", value)
    assert envs.allow_untested() is expected


def test_flag_that_is_none(monkeypatch):
    monkeypatch.setenv("DSV4_ROCM_ALLOW_UNTESTED", "perhaps")
    with pytest.raises(ValueError, match="DSV4_ROCM_ALLOW_UNTESTED must be 0 or 1, got 'perhaps'"):
        envs.allow_untested()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("DSV4_ROCM_KFDROOT", "DSV4_ROCM_KFD_ROOT"),
        ("DSV4_ROCM_IMPL_SPARSE_ATENTION", "DSV4_ROCM_IMPL_SPARSE_ATTENTION"),
        ("DSV4_ROCM_ZZZ", "known: DSV4_ROCM_KFD_ROOT"),
    ],
    ids=["close", "close-op", "far"],
)
def test_unknown_names_are_reported(monkeypatch, name, hint):
    monkeypatch.setenv(name, "1")
    (message,) = envs.unknown(OPS)
    assert message.startswith(f"{name} is set but nothing reads it")
    assert hint in message


def test_only_this_module_reads_our_variables():
    reads = re.compile(r"""(environ|getenv)[^\n]*DSV4_ROCM_""")
    sources = [*ROOT.glob("dsv4_rocm/**/*.py"), *ROOT.glob("platform/**/*.py")]
    outside = [
        p.name for p in sources if p.name != "envs.py" and "testing" not in p.parts and reads.search(p.read_text())
    ]
    assert outside == []


def test_every_variable_is_documented():
    text = (ROOT / "docs" / "serving.md").read_text()
    assert [v.name for v in envs.VARIABLES if v.name not in text] == []


def test_emulated_arch(monkeypatch):
    assert envs.emulated_arch() is None
    monkeypatch.setenv("DSV4_ROCM_KERNELS", "emulated:gfx950")
    assert envs.emulated_arch() == "gfx950"
    assert envs.unknown() == []
    monkeypatch.setenv("DSV4_ROCM_KERNELS", "emulated:sm90")
    with pytest.raises(ValueError, match="must be emulated:gfx942 or emulated:gfx950, got emulated:sm90"):
        envs.emulated_arch()
