"""Judgement without a server: the published score, needles, steps that go on later, the report, tapes."""

import json
import math

import pytest
from typer.testing import CliRunner

from dsv4_rocm.cli import app
from dsv4_rocm.testing.client import RequestFailed
from dsv4_rocm.validation import gsm8k
from dsv4_rocm.validation.needle import ladder, needle
from dsv4_rocm.validation.parity import Bounds, compare
from dsv4_rocm.validation.report import markdown, verdict
from dsv4_rocm.validation.steps import Failed, Result, Step, run_steps
from dsv4_rocm.validation.tape import Take, Tape, divergence

ABOUT = {"model": "m", "server": "s"}


class Server:
    """Answers that a test decides: `post` counts tokens as words, and knows one number."""

    url = "http://nowhere"

    def __init__(self, number="none"):
        self.number, self.asked = number, []

    def post(self, path, body):
        self.asked.append(path)
        if path == "/tokenize":
            return {"count": len(body["prompt"].split())}
        return {"choices": [{"message": {"content": f"It is {self.number}."}}]}


def test_needles_are_judged_by_their_number():
    (first, *_) = ladder("m", (500,), (0.5,))
    _, number = needle(0)
    found = first.run(Server(number))
    assert found.outcome == "pass"
    assert found.values["tokens"] <= 500
    with pytest.raises(Failed, match=f"expected {number}, got 'It is 1"):
        first.run(Server("1"))


def test_every_rung_hides_another_number():
    assert len({needle(seed) for seed in range(30)}) == 30


# shares of right answers -> whether they agree with 0.9439 +- 0.0063 (1,319 questions have an error of 0.0063)
SCORES = {"equal": (0.9439, 0.0063, True), "just inside": (0.9180, 0.0063, True), "below": (0.9160, 0.0063, False)}


@pytest.mark.parametrize(("value", "error", "agrees"), SCORES.values(), ids=SCORES.keys())
def test_gsm8k_is_judged_within_three_errors(value, error, agrees):
    score = gsm8k.Score(value, error)
    published = gsm8k.PUBLISHED["flexible-extract"]
    assert (abs(value - published.value) <= 3 * math.sqrt(error**2 + published.error**2)) is agrees
    both = {"flexible-extract": score, "strict-match": gsm8k.PUBLISHED["strict-match"]}
    assert gsm8k.judge(both, None).outcome == ("pass" if agrees else "fail")
    assert gsm8k.judge({"strict-match": score}, None).outcome == "fail"


def test_gsm8k_runs_the_published_command(tmp_path):
    words = gsm8k.command(["lm_eval"], "http://h:1", "m", None, None, None, 128, tmp_path)
    text = " ".join(words)
    for part in (
        "--tasks gsm8k ",
        "--num_fewshot 8",
        "num_concurrent=128,max_retries=10,max_gen_toks=2048,timeout=60000",
    ):
        assert part in text
    assert "base_url=http://h:1/v1/completions" in text


def test_without_lm_eval_gsm8k_is_skipped_and_says_so(monkeypatch):
    monkeypatch.setattr(gsm8k, "find_program", lambda: None)
    result = gsm8k.gsm8k("m", 8, None, None).run(Server())
    assert (result.outcome, "pip install 'lm-eval[api]'" in result.detail) == ("skipped", True)
    assert verdict({"gsm8k": result, "stream": Result("pass", "")}) == "incomplete"


def test_data_without_its_files_are_refused(tmp_path):
    (tmp_path / "test.jsonl").touch()
    with pytest.raises(ValueError, match=r"has no train.jsonl \(of openai/grade-school-math\)"):
        gsm8k.gsm8k("m", 8, tmp_path, None)


def test_a_validation_goes_on_where_it_was_stopped(tmp_path):
    ran, broken = [], [True]

    def step(name, fails=False):
        def run(client):
            ran.append(name)
            if fails and broken[0]:
                raise RequestFailed("gone")
            return Result("fail" if name == "bad" else "pass", name)

        return Step(name, run)

    steps, state = [step("good"), step("bad"), step("lost", fails=True)], tmp_path / "state.json"
    with pytest.raises(RequestFailed):
        run_steps(Server(), steps, state, ABOUT)
    broken[0] = False
    results = run_steps(Server(), steps, state, ABOUT)
    assert ran == ["good", "bad", "lost", "bad", "lost"]  # what passed is not asked again
    assert [one.outcome for one in results.values()] == ["pass", "fail", "pass"]
    run_steps(Server(), steps[:1], state, {**ABOUT, "server": "other"})
    assert ran[-1] == "good"  # another server starts anew


def test_a_file_that_is_no_state_is_left_alone(tmp_path):
    (tmp_path / "state.json").write_text("notes")
    with pytest.raises(ValueError, match="is no validation; choose another --output"):
        run_steps(Server(), [], tmp_path / "state.json", ABOUT)
    assert (tmp_path / "state.json").read_text() == "notes"


def test_the_report_is_one_page():
    results = {"stream": Result("pass", "24 pieces"), "needle/2048/0.5": Result("fail", "got 'a|b'\nc")}
    page = markdown(ABOUT, results)
    assert "**failed**: 1 pass, 1 fail, 0 skipped" in page
    assert "| needle/2048/0.5 | fail | got 'a\\|b' c |" in page


def row(*values):
    """Log-probabilities of tokens 0, 1, 2, ... from shares; the rest of 1 belongs to tokens nobody reports."""
    return {token: math.log(value) for token, value in enumerate(values)}


def test_divergence_is_the_sum_over_tokens_and_the_rest():
    one, other = row(0.6, 0.3), row(0.5, 0.3)
    expected = 0.6 * math.log(0.6 / 0.5) + 0.1 * math.log(0.1 / 0.2)
    assert divergence(one, other) == pytest.approx(expected, rel=1e-12)
    assert divergence(one, one) == 0


class Playback:
    """A server that scores a tape's text as it is told, and continues a prompt with given tokens."""

    def __init__(self, rows, said):
        self.rows, self.said = rows, said

    def post(self, path, body):
        if "prompt_logprobs" in body:
            shown = [{str(token): {"logprob": value} for token, value in one.items()} for one in self.rows]
            return {"choices": [{"prompt_logprobs": [None, *shown]}]}
        return {"choices": [{"prompt_token_ids": body["prompt"], "token_ids": self.said}]}


TAPE = Tape("m", (Take("hello", (7,), (0, 0, 0), (row(0.9, 0.1), row(0.9, 0.1), row(0.51, 0.49))),))
SAME = list(TAPE.takes[0].top)
# case -> (what the other server thinks, beginning of the last problem, or None)
OTHERS = {
    "identical": (SAME, None),
    "a tie falls the other way": ([*SAME[:2], row(0.49, 0.51)], None),
    "another token": ([SAME[0], row(0.4, 0.6), SAME[2]], "first divergence: hello, token 1: recorded 0, here 1"),
    "a little off everywhere": ([row(0.8, 0.2)] * 3, "first divergence: hello, token 2"),
}


@pytest.mark.parametrize(("rows", "problem"), OTHERS.values(), ids=OTHERS.keys())
def test_parity(rows, problem):
    found = compare(Playback(rows, [0, 0, 1]), "m", TAPE, Bounds())
    assert found.free == {"hello": 2}
    if problem is None:
        assert found.problems() == []
    else:
        assert found.problems()[-1].startswith(problem)


def test_an_empty_tape_is_refused():
    with pytest.raises(ValueError, match="holds no token"):
        compare(Playback([], []), "m", Tape("m", ()), Bounds())


def test_a_tape_is_read_as_it_was_written(tmp_path):
    TAPE.save(tmp_path / "tape.json")
    assert Tape.read(tmp_path / "tape.json") == TAPE
    other = json.loads((tmp_path / "tape.json").read_text()) | {"format": 9}
    (tmp_path / "tape.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="has format 9, this version reads 1"):
        Tape.read(tmp_path / "tape.json")


WRONG = {
    "no server": (["validate", "--base-url", "http://127.0.0.1:9"], "did not answer"),
    "no tape": (["parity", "compare", "--base-url", "http://127.0.0.1:9", "/nonesuch"], "127.0.0.1:9"),
    "no lengths": (["parity", "record", "--base-url", "http://127.0.0.1:9", "--words", "x", "t"], "127.0.0.1:9"),
}


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_start_ends_with_status_2(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
