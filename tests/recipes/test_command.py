"""A recipe rendered for a shell, Docker, Kubernetes or a script is the same command every time."""

import json
import shlex

import pytest
import yaml

from dsv4_rocm.recipes import store
from dsv4_rocm.recipes.check import members
from dsv4_rocm.recipes.command import commands, docker_argv, render, serve_argv
from dsv4_rocm.recipes.documents import stale
from dsv4_rocm.recipes.subject import read_script, split_shell

RECIPES = store.load()


@pytest.fixture(params=[name for name, recipe in RECIPES.items() if recipe.pair is None])
def recipe(request):
    return RECIPES[request.param]


def test_bash_round_trips_through_shlex(recipe):
    command = commands(recipe, [])[-1]
    exports = len(recipe.env)
    text = "\n".join(command.bash().splitlines()[exports:])
    assert tuple(shlex.split(text.replace("\\\n", " "))) == serve_argv(recipe)
    (found,) = read_script(split_shell(command.bash())).serves
    assert found == (recipe.env, serve_argv(recipe)[2:])


def test_values_keep_their_type(recipe):
    words = list(serve_argv(recipe))
    for flag, value in recipe.serve.items():
        following = words[words.index(f"--{flag}") + 1] if value is not True else None
        expected = None if value is True else json.dumps(value) if isinstance(value, dict) else str(value)
        assert following == expected


def test_docker_and_kubernetes_run_the_same_words(recipe):
    command = commands(recipe, [])[-1]
    words = list(docker_argv(command, recipe, "image:1"))
    assert words[words.index("image:1") + 1 :] == list(command.argv[1:])
    assert words[words.index("--entrypoint") + 1] == command.argv[0]
    assert ("/dev/kfd" in words) is recipe.hardware.arch.startswith("gfx")
    assert [words[at + 1] for at, word in enumerate(words) if word == "-e"] == [
        f"{k}={v}" for k, v in recipe.env.items()
    ]
    deployment, service = yaml.safe_load_all(render(command, recipe, "k8s", "image:1"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == list(command.argv)
    assert list(container["resources"]["limits"].values()) == [recipe.hardware.gpus]
    assert service["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"]


def test_argv_and_env_are_for_scripts():
    recipe = RECIPES["flash-1x-mi325x-4k"]
    command = commands(recipe, [])[-1]
    assert json.loads(render(command, recipe, "argv")) == list(serve_argv(recipe))
    assert render(command, recipe, "env") == "VLLM_ROCM_USE_AITER=1"


def test_a_pair_starts_its_servers_before_the_router():
    pair = RECIPES["flash-pd-nixl-8x-mi355x"]
    started = commands(pair, members(pair, RECIPES))
    assert [one.argv[0] for one in started] == ["vllm", "vllm", "vllm-router"]
    assert "--prefill http://localhost:8000 --decode http://localhost:8001" in " ".join(started[-1].argv)


def test_a_store_starts_before_its_server():
    recipe = RECIPES["flash-4x-mi355x-offload-mooncake-standalone"]
    assert [one.name for one in commands(recipe, [])] == ["mooncake-master", "mooncake-store", recipe.id]


def test_documents_are_up_to_date(root):
    assert stale(root) == [], "run make docs"
