"""Published checkpoints: which model each is, what draft layers it carries, and a config.json to plan with."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dsv4_rocm.model_spec import FLASH, PRO, ModelSpec

Draft = Literal["mtp", "dspark"]
Experts = Literal["mxfp4", "fp8", "nvfp4"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a repository of DeepSeek holds.

    Attributes:
        label: `flash` or `pro`.
        draft: draft layers in it: one MTP layer, or three DSpark stages.
        experts: how routed experts are stored; `nvfp4` is not loaded by this package.
    """

    label: Literal["flash", "pro"]
    draft: Draft
    experts: Experts = "mxfp4"

    @property
    def spec(self) -> ModelSpec:
        spec = FLASH if self.label == "flash" else PRO
        return replace(spec, expert_dtype="fp8") if self.experts == "fp8" else spec


_NAME = re.compile(r"deepseek-v4-(flash|pro)(-\d{4})?(-base)?(-nvfp4)?", re.IGNORECASE)
DSPARK = {
    "dspark_block_size": 7,
    "dspark_markov_rank": 256,
    "dspark_noise_token_id": 2,
    "n_mtp_layers": 3,
}


def checkpoint(model: str) -> Checkpoint | None:
    """The checkpoint behind a model name: a repository with or without owner, or a directory named like one.

    The preview (`DeepSeek-V4-Flash`) carries an MTP layer, releases with a date (`-0731`) carry DSpark stages.
    """
    match = _NAME.fullmatch(model.rstrip("/").rsplit("/", 1)[-1])
    if match is None:
        return None
    size, date, base, nvfp4 = match.groups()
    experts: Experts = "nvfp4" if nvfp4 else "fp8" if base else "mxfp4"
    return Checkpoint("flash" if size.lower() == "flash" else "pro", "dspark" if date else "mtp", experts)


def config_json(found: Checkpoint) -> dict[str, Any]:
    """config.json of the published sizes, for vLLM to make a configuration from. It describes no file of DeepSeek's."""
    from dsv4_rocm.testing import tiny_config

    spec = found.spec
    made = tiny_config.config_json(tiny_config.sizes_of(spec), "fp8-experts" if found.experts == "fp8" else "fp8")
    if found.draft == "dspark":
        last = len(spec.layers) - 1
        made |= DSPARK | {"dspark_target_layer_ids": [last // 4, last // 2, last]}
    return made


def write_directory(directory: Path, found: Checkpoint) -> Path:
    """A model directory without weights: config.json and a small tokenizer."""
    from dsv4_rocm.testing.tiny_tokenizer import write_tokenizer

    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config_json(found)))
    write_tokenizer(directory, 2048)
    return directory
