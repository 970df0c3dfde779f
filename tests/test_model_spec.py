"""ModelSpec from every form of config.json in use."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsv4_rocm.kernels.rotary import rotary_frequencies
from dsv4_rocm.model_spec import FLASH, PRO, LayerKind, ModelSpec
from dsv4_rocm.testing.tiny_config import DEMO, ORACLE, config_json


@pytest.mark.parametrize("config", [ORACLE, DEMO], ids=["oracle", "demo"])
def test_both_forms_give_the_same_spec(config) -> None:
    deepseek = ModelSpec.from_config(config_json(config, form="deepseek"))
    folded = config_json(config, form="transformers")
    assert "compress_ratios" not in folded
    folded["qk_rope_head_dim"] = 64
    assert ModelSpec.from_config(folded) == deepseek
    assert ModelSpec.from_config(SimpleNamespace(**config_json(config))) == deepseek


def test_flat_rope_parameters_load() -> None:
    config = config_json(ORACLE)
    scaling = config.pop("rope_scaling")
    config["rope_parameters"] = {**scaling, "rope_type": "yarn", "rope_theta": config.pop("rope_theta")}
    assert ModelSpec.from_config(config) == ModelSpec.from_config(config_json(ORACLE))


def test_published_models() -> None:
    assert [FLASH.count(kind) for kind in LayerKind] == [2, 21, 20]
    assert [PRO.count(kind) for kind in LayerKind] == [0, 30, 31]
    assert FLASH.layers[42].kind is PRO.layers[60].kind is LayerKind.C4A


def test_expert_dtype_defaults_to_fp4() -> None:
    config = config_json(ORACLE)
    config.pop("expert_dtype", None)
    assert ModelSpec.from_config(config).expert_dtype == "fp4"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compress_ratios": None}, "no 'compress_ratios'"),
        ({"compress_ratios": [0, 4, 16, 4, 128, 0, 0]}, r"compress_ratios\[2\] must be one of"),
        ({"compress_ratios": [0, 4]}, "names 2 layers, but num_hidden_layers is 6"),
        ({"head_dim": 256}, "head_dim must be 512"),
        ({"hc_mult": None}, "no 'hc_mult'"),
        ({"expert_dtype": "int4"}, "expert_dtype must be fp4 or fp8, got 'int4'"),
        ({"rope_scaling": None}, "rope_scaling"),
        ({"vision_n_layers": 24}, "vision"),
    ],
)
def test_a_bad_config_names_the_key(tmp_path: Path, change: dict, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_json(ORACLE) | change))
    with pytest.raises(ValueError, match=message):
        ModelSpec.from_directory(tmp_path)


def test_rotary_frequencies_by_kind() -> None:
    plain = rotary_frequencies(FLASH, LayerKind.SWA)
    compressing = rotary_frequencies(FLASH, LayerKind.C4A)
    assert plain[16].item() == pytest.approx(1e4**-0.5)
    assert compressing[10].item() == pytest.approx(1.6e5 ** (-10 / 32))  # below channel 15: as without YaRN
    assert compressing[31].item() == pytest.approx(1.6e5 ** (-31 / 32) / 16)  # past channel 25: divided by the factor
    assert compressing.equal(rotary_frequencies(FLASH, LayerKind.C128A))
