"""Every recipe against vLLM's parser and configuration, our serve plan, the lint and the planner; twins; the status."""

from dataclasses import replace

import pytest

from dsv4_rocm.recipes import store
from dsv4_rocm.recipes.check import Outcome, _findings, members, subject_of
from dsv4_rocm.recipes.subject import ask
from dsv4_rocm.recipes.twins import differences, forbidden
from dsv4_rocm.testing import vllm_releases

RECIPES = store.load()
TWINS = [name for name, recipe in RECIPES.items() if recipe.twin]


@pytest.fixture(params=RECIPES)
def outcome(request, answers):
    recipe = RECIPES[request.param]
    return Outcome(recipe, tuple(_findings(recipe, RECIPES, answers)))


def test_recipe_passes(outcome):
    errors = [finding.message for finding in outcome.findings if finding.level == "error"]
    assert not errors
    refused = [finding for finding in outcome.findings if finding.message.startswith("refused, as marked: ")]
    assert bool(refused) is (outcome.recipe.status.level == "unsupported")


@pytest.mark.slow
def test_every_recipe_passes_in_the_other_release():
    """0.33's own parser and configuration, from its source release."""
    servers = {one.id: one for recipe in RECIPES.values() for one in members(recipe, RECIPES) or [recipe]}
    answers = ask(map(subject_of, servers.values()), vllm_releases.sources(vllm_releases.V0_33))
    found = [one for recipe in RECIPES.values() for one in _findings(recipe, RECIPES, answers)]
    assert [one.message for one in found if one.level == "error"] == []


def test_vllm_understands_every_flag(answers):
    for name, recipe in RECIPES.items():
        if recipe.pair is None:
            assert answers[name].parse == ()
            assert answers[name].unknown_env == ()


@pytest.mark.parametrize("name", TWINS)
def test_twins_differ_only_where_they_may(name):
    one = RECIPES[name]
    other = RECIPES[one.twin]
    assert one.amd is not other.amd
    assert forbidden(one, other) == {}


def test_a_difference_between_twins_is_found():
    one, other = RECIPES["flash-4x-mi325x"], RECIPES["flash-4x-h200"]
    changed = other.model_copy(update={"serve": other.serve | {"max-num-seqs": 1}})
    assert forbidden(one, changed) == {"serve.max-num-seqs": (512, 1)}
    assert "hardware.product" in differences(one, other)
    moved = other.model_copy(update={"env": {"CUDA_VISIBLE_DEVICES": "0"}})
    assert "visible devices" in forbidden(one, moved)


def test_a_promise_that_the_plan_does_not_hold_fails(answers):
    recipe = RECIPES["pro-8x-h200-800k"]
    promised = recipe.model_copy(update={"memory": recipe.memory.model_copy(update={"requests": 1000.0})})
    (error,) = [one for one in _findings(promised, RECIPES, answers) if one.level == "error"]
    assert error.message.startswith("the recipe promises 1000 requests of 800000 tokens, the plan ")


def test_unsupported_without_a_refusal_fails(answers):
    recipe, refused = RECIPES["flash-4x-mi355x"], RECIPES["flash-4x-mi355x-offload-lmcache"]
    marked = recipe.model_copy(update={"status": refused.status})
    (error,) = [one for one in _findings(marked, RECIPES, answers) if one.level == "error"]
    assert "nothing refuses it; mark it derived" in error.message


def test_derived_with_a_refusal_fails(answers):
    recipe, refused = RECIPES["flash-4x-mi355x"], RECIPES["flash-4x-mi355x-offload-lmcache"]
    marked = refused.model_copy(update={"status": recipe.status})
    assert [one.rule for one in _findings(marked, RECIPES, answers) if one.level == "error"] == ["connector"]


def test_a_recipe_is_checked_on_its_own_machine():
    subject = subject_of(RECIPES["pro-gb200-nvl4-head"])
    assert (subject.gpu.arch, subject.gpus) == ("sm100", 4)
    assert replace(subject, argv=()).model == ""
