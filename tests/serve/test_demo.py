"""`dsv4-rocm demo` as a user runs it, and what it says when the server fails."""

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dsv4_rocm import demo
from dsv4_rocm.testing import server

COMMAND = Path(sys.executable).parent / "dsv4-rocm"


@pytest.mark.engine
def test_demo_shows_every_kind_of_request(tmp_path):
    done = subprocess.run(
        [COMMAND, "demo", "--log", tmp_path / "server.log"], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
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
        assert expected in done.stdout
    assert "Traceback" not in done.stdout + done.stderr + (tmp_path / "server.log").read_text()


def failing_vllm(tmp_path, monkeypatch, script):
    program = tmp_path / "vllm"
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(0o755)
    monkeypatch.setattr(server, "vllm_program", lambda: program)


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
