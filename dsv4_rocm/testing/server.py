"""A real `vllm serve` as a context manager: free loopback port, log in a file, readiness, clean stop."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

Progress = Callable[[float, str], None]  # seconds since the start, last line of the log

# Set unless the caller's environment says otherwise. A checkpoint on disk needs no network.
DEFAULT_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; vLLM's default is half of the memory
    "PYTHONUNBUFFERED": "1",
}
POLL_SECONDS = 0.25
GRACE_SECONDS = {signal.SIGINT: 20.0, signal.SIGTERM: 10.0, signal.SIGKILL: 5.0}


class ServerFailed(RuntimeError):
    """The server ended, or was not ready in time; the message holds the last lines of its log."""


class VllmServer:
    """One `vllm serve MODEL ...` process; entering it starts it unless `start` did, leaving it stops it.

    Args:
        model: checkpoint directory.
        arguments: flags after the model, without host and port.
        log: file that takes stdout and stderr.
        environment: added to this process's environment, over `DEFAULT_ENVIRONMENT`.
        progress: called several times a second while waiting.
        timeout: seconds until the server must answer.

    Attributes:
        url: `http://127.0.0.1:PORT`.
        log: as given.
        start_seconds: how long the start took, once entered.
    """

    def __init__(
        self,
        model: str | Path,
        arguments: Sequence[str] = (),
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        timeout: float = 300.0,
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.command = [
            str(vllm_program()),
            "serve",
            str(model),
            *arguments,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        self.log = log
        self.start_seconds = 0.0
        self._environment = {**DEFAULT_ENVIRONMENT, **os.environ, **(environment or {})}
        self._progress = progress
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            ServerFailed: it ended first, or the time is over; it is stopped then.
        """
        begin = time.monotonic()
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # one group to signal, and Ctrl-C in a terminal reaches only us
            )
        try:
            self._wait_until_ready(self._process, begin)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.monotonic() - begin

    def __enter__(self) -> "VllmServer":
        if self._process is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int | None:
        """Interrupt, then terminate, then kill the server's process group; returns its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        for number, seconds in GRACE_SECONDS.items():
            if process.poll() is not None:
                break
            # Only the server itself is asked to stop: it takes its workers down in order.
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        _kill_group(process.pid)  # workers that outlived it
        return process.returncode

    def log_text(self) -> str:
        """Everything the server wrote so far."""
        return self.log.read_text(errors="replace")

    def log_tail(self, lines: int = 30) -> str:
        """The last lines the server wrote."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    def _wait_until_ready(self, process: subprocess.Popen[bytes], begin: float) -> None:
        while not self._healthy():
            elapsed = time.monotonic() - begin
            if process.poll() is not None:
                raise ServerFailed(f"vllm serve ended with status {process.returncode}\n{self.log_tail()}")
            if elapsed > self._timeout:
                raise ServerFailed(f"vllm serve was not ready after {elapsed:.0f} s\n{self.log_tail()}")
            if self._progress is not None:
                self._progress(elapsed, self.log_tail(1))
            time.sleep(POLL_SECONDS)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def failed_start(
    model: str | Path, arguments: Sequence[str] = (), timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a `vllm serve` that is expected to end by itself; gives its status, stdout and stderr.

    Raises:
        subprocess.TimeoutExpired: it did not end; it is killed then.
    """
    command = [str(vllm_program()), "serve", str(model), *arguments, "--host", "127.0.0.1", "--port", str(free_port())]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**DEFAULT_ENVIRONMENT, **os.environ},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    finally:
        _kill_group(process.pid)
        process.wait()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def free_port() -> int:
    """A TCP port of the loopback interface that nothing uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def vllm_program() -> Path:
    """The `vllm` command of this Python's environment.

    Raises:
        FileNotFoundError: it is not installed there.
    """
    path = Path(sys.executable).parent / "vllm"
    if not path.exists():
        raise FileNotFoundError(f"{path}: vLLM's command is not installed in this environment; run make setup")
    return path
