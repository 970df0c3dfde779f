"""Everything we take from vLLM, in every release of the window: names, keywords, overridden methods, configuration."""

import ast
import os
from functools import cache
from pathlib import Path

import pytest

from dsv4_rocm.testing import transformers_oracle, vllm_releases
from dsv4_rocm.testing.engine import engine_arguments, run_engine
from dsv4_rocm.testing.situations import LONG_STEP, SHORT_STEPS
from dsv4_rocm.testing.tiny_checkpoint import write_checkpoint
from dsv4_rocm.testing.tiny_config import ORACLE
from dsv4_rocm.testing.vllm_symbols import SourceTree, parameters
from dsv4_rocm.upstream import SYMBOLS

ROOT = Path(__file__).resolve().parents[2]
FILES = [*ROOT.glob("dsv4_rocm/**/*.py"), *ROOT.glob("platform/**/*.py")]


@cache
def tree(version):
    if version == "installed":
        return SourceTree(vllm_releases.installed())
    try:
        return SourceTree(vllm_releases.sources(vllm_releases.V0_33))
    except OSError as error:
        pytest.skip(f"vLLM 0.33.0's sources cannot be fetched: {error}")


@pytest.fixture(params=["installed", "0.33.0"])
def vllm(request):
    return tree(request.param)


def imports(path):
    """(name here, module, name there) of each import from vLLM, wherever in the file it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            for alias in node.names:
                yield alias.asname or alias.name, node.module, alias.name


USED = {path.relative_to(ROOT): list(imports(path)) for path in FILES}
USERS = [path for path, found in USED.items() if found]


def test_the_scan_sees_what_we_import():
    assert ("Platform", "vllm.platforms.interface", "Platform") in USED[Path("platform/dsv4_rocm_platform/hooks.py")]


@pytest.mark.parametrize("path", USERS, ids=str)
def test_names_exist(vllm, path):
    assert [f"{module}.{name}" for _, module, name in USED[path] if not vllm.has(module, name)] == []


def test_names_that_the_start_asks_for_exist(vllm):
    assert [
        f"{module}.{name}" for module, names in SYMBOLS.items() for name in names if not vllm.has(module, name)
    ] == []


@pytest.mark.parametrize("path", USERS, ids=str)
def test_keywords_are_accepted(vllm, path):
    names = {here: (module, there) for here, module, there in USED[path]}
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            accepted = vllm.keywords(*names[node.func.id])
            passed = {keyword.arg for keyword in node.keywords if keyword.arg}
            assert accepted is None or passed <= accepted, f"{node.func.id}, line {node.lineno}"


def overrides(vllm, path):
    """(class, method of ours, vLLM's method of that name)."""
    names = {here: (module, there) for here, module, there in USED[path]}
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        for base in (names[base.id] for base in bases if isinstance(base, ast.Name) and base.id in names):
            for ours in (item for item in node.body if isinstance(item, ast.FunctionDef)):
                theirs = vllm.method(*base, ours.name)
                if theirs is not None and ours.name != "__init__":
                    yield node.name, ours, theirs


@pytest.mark.parametrize("path", USERS, ids=str)
def test_overridden_methods_take_what_vllm_passes(vllm, path):
    for cls, ours, theirs in overrides(vllm, path):
        if not (ours.args.kwarg and ours.args.vararg):
            here, there = parameters(ours), parameters(theirs)
            positional = len(there) - len(theirs.args.kwonlyargs)
            assert here[:positional] == there[:positional], f"{cls}.{ours.name}"
            assert set(there) <= set(here), f"{cls}.{ours.name}"


def test_the_scan_sees_what_we_override():
    found = {(cls, ours.name) for path in USERS for cls, ours, _ in overrides(tree("installed"), path)}
    assert {("Dsv4Hooks", "check_and_update_config"), ("MetadataBuilder", "build")} <= found


def section_of(node):
    """The section that an expression like `vllm_config.cache_config` names."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner_is_vllm = node.value.id in ("vllm_config", "config")
        return node.attr if owner_is_vllm and node.attr.endswith("_config") else None
    return None


def configuration_reads():
    """(file, section, field) of every `vllm_config.section.field`, also through a local name for the section."""
    for path in FILES:
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            local = {}
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    local[node.targets[0].id] = section_of(node.value)
                elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                    names = [getattr(target, "id", None) for target in getattr(node.targets[0], "elts", ())]
                    local |= dict(zip(names, map(section_of, node.value.elts), strict=True)) if names else {}
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute):
                    owner = node.value
                    section = local.get(owner.id) if isinstance(owner, ast.Name) else section_of(owner)
                    if section is not None:
                        yield path.relative_to(ROOT), section, node.attr


def test_configuration_fields_exist(vllm):
    sections = vllm.fields("vllm.config.vllm", "VllmConfig")
    reads = set(configuration_reads())
    assert {"block_size", "enable_chunked_prefill", "max_model_len", "hf_config"} <= {field for *_, field in reads}
    for path, section, field in sorted(reads, key=str):
        assert section in sections, f"{path}: vllm_config.{section}"
        if section == "additional_config":
            continue  # a dict, and what is in it is ours
        cls = sections[section].replace(" | None", "").strip("'\"")
        assert field in vllm.fields("vllm.config.vllm", cls), f"{path}: vllm_config.{section}.{field}"


@pytest.mark.engine
def test_engine_of_0_33_equals_transformers(tmp_path):
    """Its Python code with the installed extensions: one prompt over every boundary, then a prefix hit."""
    tree("0.33.0")
    write_checkpoint(tmp_path / "model", ORACLE, weights="float32")
    path = vllm_releases.runnable(vllm_releases.V0_33, tmp_path / "0.33")
    env = {"PYTHONPATH": os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])}
    steps = [LONG_STEP, *SHORT_STEPS[1:3]]
    run = run_engine(tmp_path, "0.33", {"engine": engine_arguments(tmp_path / "model"), "steps": steps}, env)
    assert run.vllm == "0.33.0+cpu"
    assert run.platform == "Dsv4HostPlatform"
    assert run.requests["warm"][0]["cached"] == 512
    oracle = transformers_oracle.from_checkpoint(tmp_path / "model")
    for answers in run.requests.values():
        for answer in answers:
            assert transformers_oracle.worst_difference(oracle, answer) <= 1e-4
