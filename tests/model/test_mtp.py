"""The draft model's names: which tensors it takes, and how its caches are marked."""

from dataclasses import dataclass

import pytest
import torch

from dsv4_rocm.cache.specs import as_draft
from dsv4_rocm.model.weights import draft_tensors


def test_draft_tensors_become_layers_behind_the_last() -> None:
    names = ["embed.weight", "layers.5.attn.wkv.weight", "norm.weight", "mtp.0.attn.wkv.scale", "mtp.1.hc_head_fn"]
    renamed = draft_tensors(((name, torch.zeros(1)) for name in names), num_layers=6)
    assert [name for name, _ in renamed] == ["embed.weight", "layers.6.attn.wkv.scale", "layers.7.hc_head_fn"]


@dataclass(frozen=True)
class Spec32:
    head_size: int = 584


@dataclass(frozen=True)
class Spec33:
    head_size: int = 584
    is_draft: bool = False


@pytest.mark.parametrize(("spec", "marked"), [(Spec32(), Spec32()), (Spec33(), Spec33(is_draft=True))])
def test_drafts_are_marked_where_vllm_has_a_field(spec: object, marked: object) -> None:
    assert as_draft(spec) == marked
