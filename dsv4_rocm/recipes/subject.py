"""What is linted: a serve command with its environment and machine, and what vLLM says about it."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dsv4_rocm.cache.gpu_memory import GpuModel
from dsv4_rocm.recipes.checkpoints import Checkpoint, checkpoint
from dsv4_rocm.upstream import window_text

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_PREFIXES = ("export", "nohup", "exec", "env")
_SEPARATORS = ("&&", ";", "&")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


@dataclass(frozen=True, slots=True)
class Subject:
    """One serve command.

    Attributes:
        key: how messages name it.
        argv: what follows `vllm serve`.
        env: variables set for it.
        gpu: the product it runs on.
        gpus: GPUs of the machine; None: as many as it asks for.
    """

    key: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    gpu: GpuModel
    gpus: int | None = None

    @property
    def model(self) -> str:
        """The model, which vLLM takes first; `--model` is the older way."""
        if self.argv and not self.argv[0].startswith("-"):
            return self.argv[0]
        return self.value("--model") or ""

    @property
    def checkpoint(self) -> Checkpoint | None:
        return checkpoint(self.model)

    @property
    def flags(self) -> list[str]:
        """Flags as typed, without values."""
        return [word.split("=")[0] for word in self.argv if word.startswith("-")]

    def has(self, flag: str) -> bool:
        """Whether a flag is given, in any of its spellings."""
        return any(spelling(typed) == flag for typed in self.flags)

    def value(self, flag: str) -> str | None:
        """The text given for a flag."""
        for index, word in enumerate(self.argv):
            name, equals, value = word.partition("=")
            if spelling(name) == flag:
                if equals:
                    return value
                following = self.argv[index + 1 : index + 2]
                return following[0] if following and not following[0].startswith("--") else None
        return None

    def json(self, flag: str) -> dict[str, Any]:
        """The mapping given for a flag, as JSON or as dotted keys (one level); empty if none."""
        found: dict[str, Any] = {}
        for index, word in enumerate(self.argv):
            name, equals, value = word.partition("=")
            head, _, key = name.partition(".")
            if spelling(head) == flag and key:
                found[key] = value if equals else next(iter(self.argv[index + 1 : index + 2]), "")
        try:
            whole = json.loads(self.value(flag) or "{}")
        except ValueError:
            return found
        return (whole if isinstance(whole, dict) else {}) | found


@dataclass(frozen=True, slots=True)
class Answer:
    """What the probe found out; see `probe._answer`."""

    parse: tuple[tuple[str, str], ...]
    refused: tuple[str, ...]
    config: Mapping[str, Any] | None
    asked: Mapping[str, Any]
    notes: tuple[str, ...]
    unknown_env: tuple[str, ...] = ()


@dataclass(slots=True)
class Script:
    """What a pasted text starts: serve commands, and a router if there is one."""

    serves: list[tuple[dict[str, str], tuple[str, ...]]] = field(default_factory=list)
    router: tuple[str, ...] | None = None


def spelling(flag: str) -> str:
    """A flag as vLLM's help writes it."""
    return flag.split(".")[0].replace("_", "-") if flag.startswith("--") else flag


def read_script(commands: Sequence[Sequence[str]]) -> Script:
    """Serve commands and router among simple shell commands; exports hold for what follows them.

    Args:
        commands: words of each, as `split_shell` gives them.

    Raises:
        ValueError: no `vllm serve` in it.
    """
    script = Script()
    exported: dict[str, str] = {}
    for words in commands:
        rest = list(words)
        own: dict[str, str] = {}
        while rest and (rest[0] in _PREFIXES or _ASSIGNMENT.match(rest[0])):
            name, equals, value = rest.pop(0).partition("=")
            if equals:
                own[name] = value
        if not rest:
            exported |= own
        elif rest[:2] == ["vllm", "serve"]:
            script.serves.append((exported | own, tuple(rest[2:])))
        elif rest[0] == "vllm-router":
            script.router = tuple(rest[1:])
    if not script.serves:
        raise ValueError("expected a command: vllm serve MODEL --flag ...")
    return script


def split_shell(text: str) -> list[list[str]]:
    """Simple commands of a pasted shell text, split into words; comments and line continuations are gone.

    Raises:
        ValueError: a quote is not closed.
    """
    commands: list[list[str]] = []
    pending = ""
    for line in text.replace("\\\n", " ").splitlines():
        pending += line
        try:
            lexer = shlex.shlex(pending, posix=True, punctuation_chars=";&")
            lexer.whitespace_split = True
            words = list(lexer)
        except ValueError:  # a quote goes on in the next line
            pending += "\n"
            continue
        pending = ""
        commands += split_words(words)
    if pending.strip():
        raise ValueError(f"the command cannot be read: a quote is not closed in {pending.strip()[:60]!r}")
    return commands


def split_words(words: Sequence[str]) -> list[list[str]]:
    """Words of one line as simple commands."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word in _SEPARATORS:
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def ask(subjects: Iterable[Subject], vllm_source: Path | None = None, timeout: float = 900.0) -> dict[str, Answer]:
    """Ask vLLM about commands, in a process of its own (about ten seconds an architecture).

    Args:
        subjects: with keys that differ.
        vllm_source: a directory that holds another `vllm` package to ask instead of the installed one.
        timeout: seconds for all of them.

    Raises:
        ValueError: there is no vLLM in `vllm_source`.
        RuntimeError: vLLM cannot be asked; the message holds the end of what it printed.
    """
    cases = [{"key": one.key, "arch": one.gpu.arch, "argv": one.argv, "env": dict(one.env)} for one in subjects]
    if not cases:
        return {}
    if vllm_source is not None and not (vllm_source / "vllm" / "__init__.py").is_file():
        raise ValueError(f"--vllm-source {vllm_source} holds no package vllm; name the directory above it")
    if vllm_source is None and find_spec("vllm") is None:
        raise RuntimeError(f"vLLM is not installed, and its parser is asked: pip install 'vllm{window_text()}'")
    hidden = ("VLLM_", *VISIBLE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    if vllm_source is not None:
        paths = [str(vllm_source), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, "-m", "dsv4_rocm.recipes.probe"]
    try:
        done = subprocess.run(
            command, input=json.dumps(cases), env=environment, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"vLLM did not say anything about the command within {timeout:.0f} s") from None
    if done.returncode:
        raise RuntimeError(f"vLLM could not be asked about the command:\n{done.stderr[-2000:]}")
    return {key: _answer(raw) for key, raw in json.loads(done.stdout).items()}


def _answer(raw: Mapping[str, Any]) -> Answer:
    return Answer(
        parse=tuple((flag, message) for flag, message in raw["parse"]),
        refused=tuple(raw["refused"]),
        config=raw["config"],
        asked=raw.get("asked", {}),
        notes=tuple(raw["notes"]),
        unknown_env=tuple(raw["unknown_env"]),
    )
