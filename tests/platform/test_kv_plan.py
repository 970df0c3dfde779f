"""vLLM's own planner, asked through the real model class on every architecture: one plan for all of them."""

import json

import pytest

from dsv4_rocm.model_spec import FLASH, PRO
from dsv4_rocm.testing.tiny_config import DEMO, config_json, sizes_of
from dsv4_rocm.testing.tiny_tokenizer import write_tokenizer

PLATFORMS = {
    "host": ("Dsv4HostPlatform", "CPU"),
    "gfx942": ("SimulatedRocmPlatform", "ROCM"),
    "gfx950": ("SimulatedRocmPlatform", "ROCM"),
    "sm90": ("SimulatedCudaPlatform", "CUDA"),
    "sm100": ("SimulatedCudaPlatform", "CUDA"),
}
PAGES = [37_440, 32_832, 8_640, 1_728]  # SWA and c4a entries, compressor states, index keys and state, c128a entries
PLANS = {
    "flash": {"groups": [64, 64, 256, 4, 8], "layers": [22, 21, 62, 42, 20], "bytes_per_block": 1_002_240},
    "pro": {"groups": [64, 64, 256, 8, 4], "layers": [31, 30, 91, 31, 60], "bytes_per_block": 1_435_968},
    "tiny": {"groups": [64, 64, 64, 256, 4, 8], "layers": [2, 2, 2, 6, 4, 2], "bytes_per_block": 95_616},
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Model directories without weights: the model is made on the meta device."""
    made = {}
    for name, config in {"tiny": DEMO, "flash": sizes_of(FLASH), "pro": sizes_of(PRO)}.items():
        made[name] = tmp_path_factory.mktemp(name)
        (made[name] / "config.json").write_text(json.dumps(config_json(config, "bfloat16")))
        write_tokenizer(made[name], 2048)
    return {name: str(path) for name, path in made.items()}


@pytest.fixture(scope="module")
def answers(directories, drive):
    return drive("plan_driver.py", directories, *PLATFORMS)


@pytest.fixture(params=PLATFORMS)
def answer(request, answers):
    return request.param, answers[request.param]


def test_plan_is_the_same_everywhere(answer):
    """From the same flags, the encoding of index rows among them."""
    _, found = answer
    for name, expected in PLANS.items():
        assert found["models"][name] == {
            "class": "dsv4_rocm.model.causal_lm",
            "plan": expected | {"pages": PAGES, "layout": "BLHNC"},
        }


def test_index_rows_left_out_are_mxfp4_where_it_is_multiplied(answer):
    name, found = answer
    index = [8_640, 4_608] if name in ("gfx950", "sm100") else [8_640]  # 8,640 is the index state's page, too
    assert found["auto"] == [37_440, 32_832, *index, 1_728]


def test_platform_keeps_the_vendor(answer):
    name, found = answer
    assert (found["platform"], found["enum"]) == PLATFORMS[name]


def test_hooks_keep_256_after_vllm_reduced_it(answer):
    """Configuration hook, backend hook, configuration of a draft model."""
    _, found = answer
    assert found["twice"] == [256, 256, 256]


def test_what_vllm_refuses_first_on_some_platforms_is_refused_by_name(answer):
    name, found = answer
    eplb = "load balancing" if name == "host" else "--enable-eplb is not supported"
    assert eplb in found["refusals"]["eplb"]
    assert "HiSparse" in found["refusals"]["hisparse"]
