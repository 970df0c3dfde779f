"""The door to vLLM: version window, expiry of what we rely on, and how a refusal ends a process."""

import multiprocessing
import subprocess
import sys

import pytest

from dsv4_rocm import upstream
from dsv4_rocm.upstream import ServeRefused


@pytest.mark.parametrize(
    ("version", "inside"),
    [
        ("0.32.0", True),
        ("0.32.0+cpu", True),
        ("0.33.1.dev7+g12ab", True),
        ("0.31.9", False),
        ("0.34.0", False),
        ("1.0.0", False),
        ("dev", False),
    ],
)
def test_window(version, inside):
    assert upstream.in_window(version) is inside


def test_installed_vllm_is_inside_the_window_and_complete():
    """When this fails, vLLM moved something: docs/upstream-compat.md says what each name is for."""
    assert upstream.in_window(upstream.vllm_version())
    assert upstream.missing_symbols() == []


def test_outside_the_window_with_everything_there_is_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(upstream, "vllm_version", lambda: "0.40.0")
    monkeypatch.setattr(upstream, "missing_symbols", list)
    upstream.check_version()
    assert "vLLM 0.40.0 is outside the tested window >=0.32,<0.34; all names we use exist" in caplog.text


def test_outside_the_window_with_something_missing_is_refused(monkeypatch):
    monkeypatch.setattr(upstream, "vllm_version", lambda: "0.40.0")
    monkeypatch.setattr(upstream, "missing_symbols", lambda: ["vllm.x.Y"])
    monkeypatch.delenv("DSV4_ROCM_ALLOW_UNTESTED", raising=False)
    with pytest.raises(ServeRefused, match=r"lacks vllm\.x\.Y; install vllm>=0\.32,<0\.34"):
        upstream.check_version()


def test_untested_can_be_allowed(monkeypatch, caplog):
    monkeypatch.setattr(upstream, "vllm_version", lambda: "0.40.0")
    monkeypatch.setattr(upstream, "missing_symbols", lambda: ["vllm.x.Y"])
    monkeypatch.setenv("DSV4_ROCM_ALLOW_UNTESTED", "1")
    upstream.check_version()
    assert "going on because DSV4_ROCM_ALLOW_UNTESTED is set" in caplog.text


def test_missing_names_are_found(monkeypatch):
    monkeypatch.setattr(upstream, "SYMBOLS", {"json": ("loads", "nope"), "no_such_module": ("x",)})
    assert upstream.missing_symbols() == ["json.nope", "no_such_module (No module named 'no_such_module')"]


REFUSE = "from dsv4_rocm.upstream import refuse; refuse('--a must be 1, got 2', '--b is not supported; leave it out')"
LINES = "dsv4_rocm: error: --a must be 1, got 2\ndsv4_rocm: error: --b is not supported; leave it out\n"


def test_the_vllm_command_ends_with_the_lines_alone(tmp_path):
    script = tmp_path / "vllm"
    script.write_text(REFUSE)
    done = subprocess.run([sys.executable, str(script), "serve"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, LINES)


def test_a_module_of_vllm_does_too(tmp_path):
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "api_server.py").write_text(REFUSE)
    done = subprocess.run([sys.executable, "-m", "vllm.api_server"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, LINES)


def test_a_program_gets_an_exception_it_can_catch():
    with pytest.raises(ServeRefused) as caught:
        upstream.refuse("--a must be 1, got 2", "--b is not supported; leave it out")
    assert isinstance(caught.value, ValueError)
    assert str(caught.value) == "--a must be 1, got 2\n--b is not supported; leave it out"


def _refuse_in_child(queue):
    sys.argv[0] = "vllm"
    try:
        upstream.refuse("--a must be 1, got 2")
    except ServeRefused as error:
        queue.put(str(error))


def test_an_engine_process_raises_so_that_vllm_can_end_the_others():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_refuse_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=20) == "--a must be 1, got 2"
    child.join()
