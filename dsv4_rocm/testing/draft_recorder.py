"""Watch drafts inside an engine: what every step was given, and the logits it came to."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

Call = dict[str, Tensor]


@contextmanager
def recorded_drafts() -> Iterator[list[Call]]:
    """Collect the calls of DeepSeekV4MTPModel made inside the block, in order.

    Yields:
        One dict per draft step: `positions` and `next_ids` int64 [tokens], `logits` fp32 [tokens, vocab] of every row,
        and `sampled` int64 [requests], the rows that the proposer took.
    """
    from dsv4_rocm.model.mtp import DeepSeekV4MTPModel

    forward, compute_logits = DeepSeekV4MTPModel.forward, DeepSeekV4MTPModel.compute_logits
    calls: list[Call] = []
    streams: list[Tensor] = []

    def recording_forward(self: Any, input_ids: Tensor, positions: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = forward(self, input_ids, positions, *args, **kwargs)
        streams[:] = [result.clone()]
        logits = compute_logits(self, result)
        assert logits is not None
        calls.append({"positions": positions.long().clone(), "next_ids": input_ids.long().clone(), "logits": logits})
        return result

    def recording_logits(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        same = (streams[0][None] == hidden_states[:, None]).all(-1)  # [requests, tokens]
        last = torch.arange(same.shape[1]).where(same, -1).amax(1)
        calls[-1]["sampled"] = last
        return compute_logits(self, hidden_states, *args, **kwargs)

    with (
        mock.patch.object(DeepSeekV4MTPModel, "forward", recording_forward),
        mock.patch.object(DeepSeekV4MTPModel, "compute_logits", recording_logits),
    ):
        yield calls


@contextmanager
def recorded_blocks() -> Iterator[list[Call]]:
    """Collect the proposals of DSparkDraftModel made inside the block, in order.

    Yields:
        One dict per proposal: `ids` and `positions` [tokens], the block; `logits` fp32 [tokens, vocab] without the
        Markov head's part; `before` [steps, requests], the token before each draft; `confidence` [steps, requests].
    """
    from dsv4_rocm.model.dspark import DSparkDraftModel

    forward, compute_logits = DSparkDraftModel.forward, DSparkDraftModel.compute_draft_logits
    markov_embed = DSparkDraftModel.markov_embed
    calls: list[Call] = []

    def recording_forward(self: Any, input_ids: Tensor, positions: Tensor, **kwargs: Any) -> Tensor:
        result = forward(self, input_ids, positions, **kwargs)
        calls.append({"ids": input_ids.clone(), "positions": positions.clone(), "hidden": result.clone()})
        return result

    def recording_logits(self: Any, hidden_states: Tensor) -> Tensor | None:
        logits = compute_logits(self, hidden_states)
        assert logits is not None
        calls[-1]["logits"] = logits.clone()
        return logits

    def recording_embed(self: Any, token_ids: Tensor) -> Tensor:
        embedded = markov_embed(self, token_ids)
        call = calls[-1]
        before = call.get("before", token_ids.new_zeros(0, len(token_ids)))
        hidden = call["hidden"].unflatten(0, (len(token_ids), -1))[:, len(before)]  # [requests, d]
        confidence = self.compute_confidence(hidden, embedded).view(1, -1)
        call["confidence"] = torch.cat([call.get("confidence", confidence[:0]), confidence])
        call["before"] = torch.cat([before, token_ids[None].clone()])
        return embedded

    with (
        mock.patch.object(DSparkDraftModel, "forward", recording_forward),
        mock.patch.object(DSparkDraftModel, "compute_draft_logits", recording_logits),
        mock.patch.object(DSparkDraftModel, "markov_embed", recording_embed),
    ):
        yield calls
