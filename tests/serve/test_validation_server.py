"""Validation and parity against a real server with random weights: probes pass, needles are asked for and not found."""

import json
import sys

import pytest
from typer.testing import CliRunner

from dsv4_rocm.cli import app
from dsv4_rocm.demo import SERVED_NAME
from dsv4_rocm.validation.gsm8k import PUBLISHED
from dsv4_rocm.validation.needle import haystack, tokens_of

pytestmark = pytest.mark.engine
PERTURB = '''
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.util import find_spec, spec_from_loader

NAME = "dsv4_rocm.kernels.sparse_attention.reference"


class Perturbing(MetaPathFinder):
    """Makes one op a little wrong in every process of a server: its output is 5 % too large."""

    def find_spec(self, name, path, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        run = spec.loader.exec_module

        def execute(module):
            run(module)
            right = module.sparse_attention

            def wrong(*args, **kwargs):
                out = right(*args, **kwargs)
                return out * 1.05

            module.sparse_attention = wrong

        spec.loader.exec_module = execute
        return spec


sys.meta_path.insert(0, Perturbing())
'''
LM_EVAL = """#!{python}
import json, pathlib, sys
argument = lambda name: sys.argv[sys.argv.index(name) + 1]
task = (pathlib.Path(argument("--include_path")) / (argument("--tasks") + ".yaml")).read_text()
assert "train.jsonl" in task and argument("--limit") == "8" and argument("--num_fewshot") == "8"
folder = pathlib.Path(argument("--output_path")) / "model"
folder.mkdir(parents=True)
scores = {scores}
(folder / "results_1.json").write_text(json.dumps({{"results": {{argument("--tasks"): scores}}}}))
"""


@pytest.fixture
def data(tmp_path, monkeypatch):
    """GSM8K files and a program in place of lm_eval that gives the published score."""
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text('{"question": "1+1=?", "answer": "#### 2"}\n')
    scores = {}
    for name, score in PUBLISHED.items():
        scores |= {f"exact_match,{name}": score.value, f"exact_match_stderr,{name}": score.error}
    program = tmp_path / "bin" / "lm_eval"
    program.parent.mkdir()
    program.write_text(LM_EVAL.format(python=sys.executable, scores=scores))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return tmp_path


def test_validate(server, data):
    output = data / "out"
    words = ["validate", "--base-url", server.url, "--needle", "400,1000", "--limit", "8", "--data", str(data)]
    done = CliRunner().invoke(app, [*words, "--output", str(output), "--json"])
    found = json.loads(done.stdout)
    ended = {name: one["outcome"] for name, one in found["results"].items()}
    good = ["think/non-think", "think/high", "think/max", "tool-call", "stream", "prefix", "gsm8k"]
    assert [name for name, outcome in ended.items() if outcome == "pass"] == good
    assert found["results"]["prefix"]["cached"] >= 256
    needles = [name for name in ended if name.startswith("needle/")]
    assert needles == [f"needle/{length}/{depth}" for length in (400, 1000) for depth in (0.1, 0.5, 0.9)]
    assert all("expected" in found["results"][name]["detail"] for name in needles)  # random weights find nothing
    assert (done.exit_code, found["verdict"]) == (1, "failed")
    page = (output / "report.md").read_text()
    assert "**failed**: 7 pass, 6 fail, 0 skipped" in page


@pytest.mark.parametrize("length", [600, 2048])
def test_a_haystack_fills_its_length(client, length):
    prompt, number, tokens = haystack(client, SERVED_NAME, length, 0.5, 3)
    assert 0.95 * length < tokens <= length
    assert tokens == tokens_of(client, SERVED_NAME, prompt)
    before, _, after = prompt.partition(f"lamp is {number}.")
    after = after.partition("\n\n")[0]  # the question
    assert len(before) == pytest.approx(len(after), rel=0.15)  # some twenty sentences on each side, one more on one


def record(url, tape):
    words = ["parity", "record", "--base-url", url, "--words", "20,160", "--tokens", "24", str(tape)]
    return CliRunner().invoke(app, words)


def compare(url, tape):
    """With bounds for one machine: a server repeats its own tape to 1e-6, an op that is 5 % off moves it by 2e-4."""
    bounds = ["--max-mean", "1e-5", "--max-one", "1e-4"]
    return CliRunner().invoke(app, ["parity", "compare", "--base-url", url, str(tape), "--json", *bounds])


def test_a_server_is_equal_to_its_own_tape(server, tmp_path):
    assert record(server.url, tmp_path / "tape.json").exit_code == 0
    done = compare(server.url, tmp_path / "tape.json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["problems"], found["places"]) == (0, [], 48)
    assert found["mean_divergence"] < 1e-6
    assert found["equal_tokens_of_a_free_run"] == {"20-words": 24, "160-words": 24}


@pytest.mark.slow
def test_a_server_with_one_wrong_op_fails(server, start, tmp_path):
    assert record(server.url, tmp_path / "tape.json").exit_code == 0
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(PERTURB)
    path = ":".join([str(tmp_path / "hook"), *filter(None, sys.path)])
    with start(tmp_path / "wrong.log", PYTHONPATH=path) as wrong:
        done = compare(wrong.url, tmp_path / "tape.json")
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert any(problem.startswith("first divergence: 20-words, token ") for problem in found["problems"])
