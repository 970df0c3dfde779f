"""A recipe as a command: argument list, environment, and the forms that shells and clusters take."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from dsv4_rocm.recipes.schema import FlagValue, Recipe, Router

Form = Literal["bash", "argv", "docker", "k8s", "env"]
IMAGE = "dsv4-rocm:latest"  # vLLM's image with `pip install dsv4-rocm` on top
DEFAULT_PORT = 8000
LINE = 100


@dataclass(frozen=True, slots=True)
class Command:
    """One process: its environment and its argument list."""

    name: str
    env: Mapping[str, str]
    argv: tuple[str, ...]

    def bash(self) -> str:
        """Exports and the command, one flag a line; `shlex.split` of the command gives `argv` again."""
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.env.items()]
        return "\n".join([*lines, _wrapped(self.argv)])


def serve_argv(recipe: Recipe) -> tuple[str, ...]:
    """`vllm serve MODEL --flag value ...`; true is `--flag`, false is `--no-flag`, mappings are JSON."""
    words = ["vllm", "serve", recipe.model]
    for flag, value in recipe.serve.items():
        words += _flag_words(flag, value)
    return tuple(words)


def commands(recipe: Recipe, members: list[Recipe]) -> list[Command]:
    """Everything to start, in order: services, servers, router.

    Args:
        recipe: one server, or a pair.
        members: the recipes of its pair; empty for one server.
    """
    started = []
    for server in members or [recipe]:
        started += [Command(service.name, service.env, tuple(service.argv)) for service in server.services]
        started.append(Command(server.id, server.env, serve_argv(server)))
    if recipe.pair is not None and recipe.pair.router is not None:
        started.append(Command("router", {}, router_argv(recipe.pair.router, members)))
    return started


def router_argv(router: Router, members: list[Recipe]) -> tuple[str, ...]:
    """vllm-router for the servers of a pair on this machine."""
    words = ["vllm-router", "--policy", router.policy, "--vllm-pd-disaggregation"]
    for member in members:
        words += [f"--{member.role}", f"http://localhost:{port_of(member)}"]
    words += ["--host", router.host, "--port", str(router.port)]
    if router.data_parallel_size > 1:
        words += ["--intra-node-data-parallel-size", str(router.data_parallel_size)]
    return (*words, "--kv-connector", router.kv_connector)


def port_of(recipe: Recipe) -> int:
    """The port it serves on."""
    return int(recipe.get("port", DEFAULT_PORT))


def render(command: Command, recipe: Recipe, form: Form, image: str = IMAGE) -> str:
    """A command in one form.

    Args:
        command: what to run.
        recipe: the recipe it belongs to (devices and ports of `docker` and `k8s`).
        form: `bash`, `argv` (a JSON list), `env` (NAME=value lines), `docker`, `k8s`.
        image: for `docker` and `k8s`.
    """
    if form == "bash":
        return command.bash()
    if form == "argv":
        return json.dumps(list(command.argv))
    if form == "env":
        return "\n".join(f"{name}={value}" for name, value in command.env.items())
    if form == "docker":
        return _wrapped(docker_argv(command, recipe, image))
    documents = k8s_documents(command, recipe, image)
    text: str = yaml.safe_dump_all(documents, sort_keys=False)
    return text.rstrip()


def docker_argv(command: Command, recipe: Recipe, image: str) -> tuple[str, ...]:
    """`docker run` with the devices of the vendor and the caches of the user."""
    devices = (
        ["--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"] if recipe.amd else ["--gpus", "all"]
    )
    words = ["docker", "run", "--rm", "--name", command.name, "--ipc", "host", *devices]
    words += ["--network", "host"] if recipe.role != "standalone" else ["-p", f"{port_of(recipe)}:{port_of(recipe)}"]
    words += ["-v", "hf-cache:/root/.cache/huggingface"]
    for name, value in command.env.items():
        words += ["-e", f"{name}={value}"]
    return (*words, "--entrypoint", command.argv[0], image, *command.argv[1:])


def k8s_documents(command: Command, recipe: Recipe, image: str) -> list[dict[str, Any]]:
    """A Deployment and a Service."""
    port, labels = port_of(recipe), {"app": command.name}
    resource = "amd.com/gpu" if recipe.amd else "nvidia.com/gpu"
    container = {
        "name": "vllm",
        "image": image,
        "command": list(command.argv),
        "env": [{"name": name, "value": value} for name, value in command.env.items()],
        "ports": [{"containerPort": port}],
        "resources": {"limits": {resource: recipe.hardware.gpus}},
        # Weights are read for minutes before /health answers.
        "startupProbe": {"httpGet": {"path": "/health", "port": port}, "periodSeconds": 10, "failureThreshold": 360},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {"containers": [container], "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": command.name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": command.name},
        "spec": {"selector": dict(labels), "ports": [{"port": port}]},
    }
    return [deployment, service]


def _flag_words(flag: str, value: FlagValue) -> list[str]:
    if value is True:
        return [f"--{flag}"]
    if value is False:
        return [f"--no-{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *map(str, value)]
    return [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]


def _wrapped(argv: tuple[str, ...]) -> str:
    """The command over lines that end in a backslash; a flag and its values stay together."""
    groups: list[str] = []
    for word in map(shlex.quote, argv):
        if groups and not word.startswith("-"):
            groups[-1] += f" {word}"
        else:
            groups.append(word)
    lines = [""]
    for group in groups:
        if lines[-1] and len(lines[-1]) + len(group) > LINE:
            lines.append("")
        lines[-1] += f" {group}" if lines[-1] else group
    return " \\\n  ".join(lines)
