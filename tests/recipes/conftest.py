"""vLLM is asked once for everything these tests need: every recipe, the published commands, and the old flags."""

from pathlib import Path

import pytest

from dsv4_rocm.recipes import store
from dsv4_rocm.recipes.check import members, subject_of
from dsv4_rocm.recipes.lint import lint
from dsv4_rocm.recipes.products import product
from dsv4_rocm.recipes.subject import Subject, ask, read_script, split_shell
from dsv4_rocm.recipes.translations import RENAMED_FLAGS

PUBLISHED = Path(__file__).parent / "published"  # commands that users copy, as they were published
MACHINES = {
    "k1": ("B200", 4),
    "k2": ("GB300", 4),
    "k3": ("GB300", 1),
    "k4": ("RTX-PRO-6000", 8),
    "k5": ("MI325X", 1),
    "k6": ("MI355X", 4),
    "k7-mooncake": ("H200", 8),
    "k7-nixl": ("H200", 8),
    "k8-b300": ("B300", 8),
    "k8-h200": ("H200", 8),
    "k8-mi355x": ("MI355X", 8),
    "k9-simple": ("H200", 8),
    "k9-mooncake": ("H200", 8),
    "k9-lmcache": ("H200", 8),
}
# Commands of one vendor pasted on a machine of the other.
ELSEWHERE = {"k1-on-amd": ("k1", "MI325X", 2), "k2-on-amd": ("k2", "MI355X", 4), "k5-on-nvidia": ("k5", "H200", 1)}
MODEL = "deepseek-ai/DeepSeek-V4-Flash"


def read(name):
    return read_script(split_shell((PUBLISHED / f"{name}.sh").read_text()))


def published_subjects():
    """(case, number) -> the commands of a published text on the machine of the case."""
    found = {}
    cases = {name: (name, *machine) for name, machine in MACHINES.items()} | ELSEWHERE
    for case, (name, gpu, gpus) in cases.items():
        for number, (env, argv) in enumerate(read(name).serves):
            found[case, number] = Subject(f"{case}/{number}", argv, env, product(gpu), gpus)
    return found


OLD_FLAGS = Subject(
    "old flags",
    (MODEL, *(word for flag in RENAMED_FLAGS for word in (flag, "1")), "--moe-backend", "nope", "--block-size", "x"),
    {},
    product("MI325X"),
)
TOO_LARGE = Subject(
    "too large",
    (
        MODEL,
        "--tokenizer-mode",
        "deepseek_v4",
        "--kv-cache-memory-bytes",
        "188000000000",
        "--max-num-batched-tokens",
        "2048",
    ),
    {},
    product("MI325X"),
)


@pytest.fixture(scope="session")
def recipes():
    return store.load()


@pytest.fixture(scope="session")
def published():
    return published_subjects()


@pytest.fixture(scope="session")
def answers(recipes, published):
    servers = {one.id: one for recipe in recipes.values() for one in members(recipe, recipes) or [recipe]}
    subjects = [*map(subject_of, servers.values()), *published.values(), OLD_FLAGS, TOO_LARGE]
    return ask(subjects)


@pytest.fixture(scope="session")
def findings(published, answers):
    """(case, number) -> what the lint says."""
    return {key: lint(subject, answers[subject.key]) for key, subject in published.items()}


@pytest.fixture(scope="session")
def old_flags(answers):
    return OLD_FLAGS, answers[OLD_FLAGS.key]


@pytest.fixture(scope="session")
def too_large(answers):
    return TOO_LARGE, answers[TOO_LARGE.key]


@pytest.fixture(scope="session")
def router():
    return {name: read(name).router for name in ("k7-mooncake", "k7-nixl")}


@pytest.fixture(scope="session")
def root():
    return Path(__file__).resolve().parents[2]
