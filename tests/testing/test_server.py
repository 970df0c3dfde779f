"""The server helper against programs that behave and misbehave: ready, failing, silent, deaf, with children."""

import os
import signal
import sys
import time

import pytest

from dsv4_rocm.testing import server as server_module
from dsv4_rocm.testing.client import Client, RequestFailed
from dsv4_rocm.testing.server import ServerFailed, VllmServer, free_port, vllm_program
from dsv4_rocm.testing.server_log import groups_of, lines_of, message_of, ops_of

HEALTHY = """
import http.server, os, signal, subprocess, sys, time
print("arguments", sys.argv[1:], flush=True)
print("offline", os.environ["HF_HUB_OFFLINE"], os.environ.get("EXTRA"), flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
        self.wfile.write(b"no such path")
    def log_message(self, *args): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
"""
SERVE = 'http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()\n'
CLEAN_STOP = "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))\n"
DEAF = "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
CHILD = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print("child", child.pid, flush=True)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Installs a script as `vllm` and returns a maker of servers."""

    def make(script, **options):
        path = tmp_path / "vllm"
        path.write_text(f"#!{sys.executable}\n{script}")
        path.chmod(0o755)
        monkeypatch.setattr(server_module, "vllm_program", lambda: path)
        return VllmServer("MODEL", ["--flag", "value"], log=tmp_path / "log", **options)

    return make


def alive(pid):
    """Whether a process runs; one that ended and waits for its parent does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ready_server_is_entered_and_stopped_cleanly(program, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    seen = []
    with program(
        "import time; time.sleep(0.6)" + HEALTHY + CLEAN_STOP + SERVE,
        environment={"EXTRA": "7"},
        progress=lambda elapsed, last: seen.append((elapsed, last)),
    ) as server:
        assert server.running
        assert "['serve', 'MODEL', '--flag', 'value', '--host', '127.0.0.1', '--port'" in server.log_text()
        assert "offline 1 7" in server.log_text()
        with pytest.raises(RequestFailed, match="/nothing answered 404: no such path"):
            Client(server.url).get("/nothing")
        assert server.stop() == 0
        assert not server.running
    assert len(seen) >= 2
    assert server.start_seconds > 0.5


def test_the_users_environment_wins(program, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with program(HEALTHY + CLEAN_STOP + SERVE) as server:
        assert "offline 0 None" in server.log_text()


def test_failing_server_shows_the_end_of_its_log(program):
    with (
        pytest.raises(ServerFailed, match=r"ended with status 3\n(line \d+\n){29}line 99$"),
        program("import sys\nfor n in range(100): print('line', n)\nsys.exit(3)"),
    ):
        pass


def test_silent_server_is_stopped_after_the_timeout(program):
    server = program("import os, time; print('pid', os.getpid(), flush=True); time.sleep(100)", timeout=1.0)
    with pytest.raises(ServerFailed, match="not ready after 1 s"):
        server.start()
    assert not alive(int(lines_of(server.log_text(), "pid ")[0]))


def test_deaf_server_and_its_children_are_killed(program, monkeypatch):
    monkeypatch.setattr(server_module, "GRACE_SECONDS", {signal.SIGINT: 0.3, signal.SIGTERM: 0.3, signal.SIGKILL: 5.0})
    with program(HEALTHY + DEAF + CHILD + SERVE) as server:
        child = int(lines_of(server.log_text(), "child ")[0])
        assert alive(child)
        assert server.stop() == -signal.SIGKILL
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def test_interrupt_while_waiting_stops_the_server(program):
    def interrupt(elapsed, last):
        if "pid" in last:
            raise KeyboardInterrupt

    server = program("import os, time; print('pid', os.getpid(), flush=True); time.sleep(100)", progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert not alive(int(lines_of(server.log_text(), "pid ")[0]))


def test_ports_are_free():
    assert free_port() > 1023


def test_missing_vllm_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}{os.sep}vllm: .* run make setup"):
        vllm_program()


LOG = """\
(Worker pid=6609) INFO 11-29 16:04:07 [selection.py:107] dsv4_rocm ops on gfx942:
(Worker pid=6609) INFO 11-29 16:04:07 [selection.py:107]   compress_insert    triton
(Worker pid=6609) INFO 11-29 16:04:07 [selection.py:107]   sparse_attention   reference  (not hip: no compiler)
(Worker pid=6609) WARNING 11-29 16:04:07 [compilation.py:1348] Op 'quant_fp8' not present in model
(Worker pid=6609) INFO 11-29 16:04:07 [base.py:1]   not_an_op    here
(EngineCore pid=6531) INFO 11-29 16:04:09 [kv_cache_utils.py:853] kv cache group sizes (64, 64, 256, 4, 8)
"""


def test_log_is_understood():
    assert ops_of(LOG) == {"compress_insert": "triton", "sparse_attention": "reference  (not hip: no compiler)"}
    assert groups_of(LOG) == (64, 64, 256, 4, 8)
    assert message_of(LOG.splitlines()[3]) == "Op 'quant_fp8' not present in model"
    assert ops_of("") == {}
    assert groups_of("") == ()
