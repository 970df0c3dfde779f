"""`dsv4-rocm recipes` as a user and as a CI types it: text, JSON, exit status."""

import json

import pytest
from typer.testing import CliRunner

from dsv4_rocm.cli import app


@pytest.fixture
def run(monkeypatch, answers):
    """The commands, with vLLM's answers from the session's one question."""
    import dsv4_rocm.recipes.check
    import dsv4_rocm.recipes.lint_text
    import dsv4_rocm.recipes.subject

    def told(subjects, vllm_source=None):
        return {one.key: answers.get(one.key, answers["k6/0"]) for one in subjects}

    for module in (dsv4_rocm.recipes.check, dsv4_rocm.recipes.lint_text, dsv4_rocm.recipes.subject):
        monkeypatch.setattr(module, "ask", told)
    return lambda *words: CliRunner().invoke(app, ["recipes", *words])


def test_list_and_show(run):
    assert "flash-1x-mi325x-4k" in run("list").output
    listed = json.loads(run("list", "--json").output)
    shown = json.loads(run("show", "flash-4x-h200", "--json").output)
    assert shown in listed
    assert (shown["hardware"]["product"], shown["serve"]["block-size"]) == ("H200", 256)
    assert "tensor-parallel-size: 4" in run("show", "flash-4x-h200").output


def test_render(run):
    done = run("render", "flash-pd-nixl-8x-h200")
    assert done.exit_code == 0
    assert done.output.count("\nvllm serve ") == 2
    assert "# router\nvllm-router " in done.output
    started = json.loads(run("render", "flash-pd-nixl-8x-h200", "--json").output)
    assert [one["name"].rsplit("-", 1)[-1] for one in started] == ["prefill", "decode", "router"]


def test_check_tells_a_ci(run):
    done = run("check", "flash-4x-mi355x")
    assert (done.exit_code, done.output.splitlines()[0]) == (0, "ok  flash-4x-mi355x  (derived)")
    warned = any(line.startswith("    warning") for line in done.output.splitlines())
    assert run("check", "flash-4x-mi355x", "--strict").exit_code == int(warned)
    found = json.loads(run("check", "--all", "--json").output)
    assert all(one["ok"] for one in found)
    assert {"level", "rule", "message"} == set(found[0]["findings"][0])


def test_plan(run):
    done = run("plan", "pro-8x-mi355x", "--json")
    assert done.exit_code == 0
    assert json.loads(done.output)["fits"] is True
    assert "fits; limited by" in run("plan", "pro-8x-mi355x").output
    assert "is a pair; plan flash-pd-nixl-8x-h200-prefill and" in run("plan", "flash-pd-nixl-8x-h200").stderr


def test_pair(run):
    assert run("pair", "flash-pd-mooncake-8x-mi355x").exit_code == 0
    assert "is one server, not a pair" in run("pair", "flash-4x-h200").stderr


def test_diff(run):
    assert run("diff", "flash-4x-h200", "flash-4x-h200").exit_code == 0
    done = run("diff", "flash-4x-h200", "flash-4x-mi325x")
    assert done.exit_code == 1
    assert "hardware.product: H200 | MI325X\n" in done.output


def test_lint_command(run, root):
    text = (root / "tests/recipes/published/k6.sh").read_text().replace("\\\n", " ")
    words = text[text.index("vllm serve") :].split("--compilation-config")[0].split()
    done = run("lint-command", "--gpu", "MI355X", "--", "VLLM_ROCM_USE_AITER=1", *words)
    assert done.exit_code == 0
    assert done.output.startswith("on MI355X (gfx950)\nvllm serve deepseek-ai/DeepSeek-V4-Flash\n")
    found = run("lint-command", "--gpu", "MI355X", "--json", "--", *words, "--moe-backend", "deep_gemm_mega_moe")
    assert found.exit_code == 1
    (findings,) = json.loads(found.output)["commands"].values()
    assert [one["rule"] for one in findings if one["level"] == "error"] == ["moe-backend"]


def test_lint_command_reads_a_script(run, root):
    done = run("lint-command", "--gpu", "H200", "--file", str(root / "tests/recipes/published/k7-nixl.sh"))
    assert "vllm serve deepseek-ai/DeepSeek-V4-Flash (2)\n" in done.output
    assert "\npair\n" in done.output


WRONG = {
    "no recipe": (["show", "nonesuch"], "no recipe nonesuch"),
    "nothing to check": (["check"], "name one recipe, or give --all"),
    "no command": (["lint-command"], "give a command after --, or --file"),
    "another command": (["lint-command", "--", "curl", "x"], "expected a command: vllm serve"),
    "no GPU": (["lint-command", "--gpu", "A100", "--", "vllm", "serve", "m"], "--gpu must be one of MI325X"),
    "no file": (["lint-command", "--file", "/nonesuch"], "/nonesuch"),
}


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_typed_wrongly_ends_with_status_2(run, words, message):
    done = run(*words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
