"""`dsv4-rocm demo` as a user runs it, and what it says when the server fails."""

import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dsv4_rocm import demo
from dsv4_rocm.testing import server

COMMAND = Path(sys.executable).parent / "dsv4-rocm"
TIMEOUT = 400  # measured: 60 s on two idle cores; other work on the machine may take most of them


@pytest.mark.engine
def test_demo_shows_every_kind_of_request(tmp_path):
    with subprocess.Popen(
        [COMMAND, "demo", "--log", tmp_path / "server.log"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
        finally:
            process.terminate()
    assert process.returncode == 0, output
    for expected in (
        "FP8 linears, FP4 experts",
        "--kv-cache-dtype fp8 --block-size 256",
        "dsv4_rocm_platform.",
        "fp8 key rows",
        "sparse_attention",
        "37,440",
        "11,229 blocks",
        "Completion",
        "Chat, Non-think",
        "Chat, Think High",
        "Chat, Think Max",
        'get_weather({"city": ',
        "Streamed answer",
        "Server stopped cleanly.",
    ):
        assert expected in output
    # While vLLM stops, its output handler may find the engine gone before it is told to end.
    served, _, _ = (tmp_path / "server.log").read_text().partition("[shutdown]")
    assert "Traceback" not in output + served


def failing_vllm(tmp_path, monkeypatch, script):
    program = tmp_path / "vllm"
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(0o755)
    monkeypatch.setattr(server, "vllm_program", lambda: program)


def test_demo_that_is_terminated_takes_its_server_along(tmp_path):
    """A fake `vllm` beside a Python that is a link to ours; it would run for a minute."""
    (tmp_path / "vllm").write_text(
        f"#!{sys.executable}\nimport os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(60)\n"
    )
    (tmp_path / "vllm").chmod(0o755)
    log = tmp_path / "server.log"
    code = f"import sys; sys.executable = {str(tmp_path / 'python')!r}; from dsv4_rocm.cli import main; main()"
    with subprocess.Popen([sys.executable, "-c", code, "demo", "--log", log], stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_text().endswith("\n")) and time.monotonic() < deadline:
            time.sleep(0.1)
        server_id = int(log.read_text().split()[1])
        process.terminate()
        assert process.wait(30) != 0
    assert not Path(f"/proc/{server_id}").exists()


def test_failing_server_ends_the_demo_with_its_log(tmp_path, monkeypatch):
    failing_vllm(tmp_path, monkeypatch, "import sys; print('out of memory on node 0'); sys.exit(3)")
    with pytest.raises(demo.DemoFailed, match=r"ended with status 3\n.*out of memory on node 0"):
        demo.run(Console(file=StringIO()))


def test_another_platform_is_not_taken_for_ours(tmp_path, monkeypatch):
    """A server that answers but never printed our table did not run our model."""
    script = """
import http.server, sys
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Healthy).serve_forever()
"""
    failing_vllm(tmp_path, monkeypatch, script)
    with pytest.raises(demo.DemoFailed, match="no table of dsv4_rocm ops"):
        demo.run(Console(file=StringIO()))
