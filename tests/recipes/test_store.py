"""Recipe files: fragments are put together, and whatever is wrong is named with its file, line and field."""

import subprocess
import sys
import zipfile

import pytest

from dsv4_rocm.recipes.store import BadRecipe, get, load

GOOD = """\
base:
  fragment: true
  status: {level: derived, date: 2026-01-02, evidence: [parser]}
  requires: {vllm: ">=0.32", dsv4_rocm: ">=0.1"}
  model: deepseek-ai/DeepSeek-V4-Flash
  hardware: {product: H200, arch: sm90, vram_gib: 140, gpus: 4}
  serve: {block-size: 256, kv-cache-dtype: fp8}
one:
  extends: base
  title: One
  serve: {tensor-parallel-size: 4, kv-cache-dtype: null}
"""


@pytest.fixture
def write(tmp_path):
    def make(text, name="a.yaml"):
        (tmp_path / name).write_text(text)
        return tmp_path

    return make


def test_fragments_are_laid_over_each_other(write):
    recipes = load(write(GOOD))
    assert list(recipes) == ["one"]
    assert recipes["one"].serve == {"block-size": 256, "tensor-parallel-size": 4}


def test_a_null_takes_away_what_a_fragment_before_it_gave(write):
    more = GOOD + "no-rows: {fragment: true, serve: {kv-cache-dtype: null, port: null}}\n"
    more = more.replace("extends: base", "extends: [base, no-rows]").replace(", kv-cache-dtype: null", "")
    assert load(write(more))["one"].serve == {"block-size": 256, "tensor-parallel-size": 4}


# case -> (what replaces what in GOOD, the message)
BAD = {
    "unknown field": (("  title: One", "  titel: One\n  title: One"), "a.yaml:10: one.titel: Extra inputs"),
    "wrong type": (("gpus: 4}", 'gpus: "4"}'), "a.yaml:6: one.hardware.gpus: Input should be a valid integer"),
    "missing field": (("  title: One\n", ""), "a.yaml:8: one.title: Field required"),
    "wrong value": (("level: derived", "level: sure"), "a.yaml:3: one.status.level: Input should be 'verified'"),
    "other machine": (("arch: sm90", "arch: sm100"), "a.yaml:6: one.hardware: H200 is sm90 with 140 GiB, got sm100"),
    "another model": (("DeepSeek-V4-Flash", "DeepSeek-V3"), "a.yaml:5: one.model: expected a repository like"),
    "shell string": (
        ("kv-cache-dtype: null", 'port: "1; rm x"'),
        "a.yaml:11: one.serve: port: a value, not a piece of",
    ),
    "bad flag": (("tensor-parallel-size", "--tensor"), "a.yaml:11: one.serve.--tensor"),
    "twice": (("  title: One", "  title: One\n  title: Two"), "a.yaml:11: title: is given twice, first in line 10"),
    "no parent": (("extends: base", "extends: bass"), "a.yaml:9: one.extends: there is no entry bass"),
    "own parent": (("extends: base", "extends: one"), "a.yaml:9: one.extends: one extends itself"),
    "no twin": (("  title: One", "  title: One\n  twin: two"), "a.yaml:11: one.twin: there is no recipe two"),
    "not YAML": (("  title: One", "  title: [One"), "a.yaml:11: YAML: "),
    "verified without a run": (("level: derived", "level: verified"), "a.yaml:3: one.status: a verified recipe names"),
    "think max": (
        ("tensor-parallel-size: 4,", "max-model-len: 4096}\n  validate: {think: [max]}\n  memory: {"),
        "a.yaml:8: one: Think Max needs max-model-len 393216 or more, got 4096",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_is_named_with_file_line_and_field(write, change, message):
    text = GOOD.replace(*change)
    assert text != GOOD
    if "memory: {" in text:
        text = text.replace("memory: { kv-cache-dtype: null}", "memory: {}")
    with pytest.raises(BadRecipe) as caught:
        load(write(text))
    assert message in str(caught.value)


def test_an_id_in_two_files_is_refused(write):
    write(GOOD)
    with pytest.raises(BadRecipe, match=r"b.yaml:1: base: is defined at a.yaml:1 already"):
        load(write(GOOD, "b.yaml"))


def test_an_unknown_recipe_is_refused():
    with pytest.raises(ValueError, match="no recipe nonesuch"):
        get("nonesuch")


def without(package, statement, root):
    code = f"import sys; sys.modules['{package}'] = None; {statement}"
    return subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)


@pytest.mark.parametrize("package", ["yaml", "pydantic"])
def test_a_missing_package_is_named(package, root):
    done = without(package, "import dsv4_rocm.recipes.store", root)
    assert "ImportError: recipes need PyYAML and pydantic" in done.stderr


def test_the_command_names_a_missing_package_in_one_line(root):
    done = without("yaml", "from dsv4_rocm.cli import app; app(['recipes', 'list'])", root)
    assert done.returncode == 2
    assert done.stderr.startswith("dsv4-rocm: recipes need PyYAML and pydantic")
    assert "Traceback" not in done.stderr


def test_every_status_names_its_evidence(recipes):
    assert {recipe.status.level for recipe in recipes.values()} == {"derived", "unsupported"}
    assert all(recipe.status.evidence for recipe in recipes.values())


def test_a_wheel_carries_the_files(tmp_path, root):
    """Built from the tracked files, as a release is."""
    copy = tmp_path / "copy"
    for name in ("pyproject.toml", "README.md", "LICENSE", "recipes", "dsv4_rocm/__init__.py"):
        source, target = root / name, copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            target.mkdir()
            for file in source.glob("*.yaml"):
                (target / file.name).write_bytes(file.read_bytes())
        else:
            target.write_bytes(source.read_bytes())
    for name in ("platform", "hip_kernels"):
        (copy / name).mkdir()
    code = "import setuptools.build_meta as b; print(b.build_wheel('dist'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = (copy / "dist").glob("*.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if "share/dsv4_rocm/recipes/" in name]
    assert {name.rsplit("/", 1)[1] for name in names} == {file.name for file in (root / "recipes").glob("*.yaml")}
