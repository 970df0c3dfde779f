"""DSpark in plain torch, written from the specification (docs/model-spec.md 5): a block of drafts over a context."""

import torch
from torch import Tensor

from dsv4_rocm.testing.reference_attention import attend, store_key
from dsv4_rocm.testing.reference_layers import (
    enter_sublayer,
    join_streams,
    leave_sublayer,
    moe,
    rms_norm,
    rotate,
    rotation_frequencies,
)
from dsv4_rocm.testing.reference_model import ReferenceModel


class ReferenceDSpark:
    """The draft stages of a model.

    Args:
        model: whose configuration has `dspark`.
        causal: a wrong draft for comparison: a token of the block sees nothing behind itself.
    """

    def __init__(self, model: ReferenceModel, causal: bool = False) -> None:
        assert model.config.dspark is not None
        self.model, self.config, self.dspark, self.causal = model, model.config, model.config.dspark, causal
        self.last = model.params.under(f"mtp.{model.config.num_draft_layers - 1}")
        self.frequencies = rotation_frequencies(model.config, compressed=False)

    @torch.no_grad()
    def context(self, ids: Tensor) -> Tensor:
        """Context states of a sequence: int64 [tokens] -> [tokens, d]."""
        after = self.model.streams_after(ids, self.dspark.target_layer_ids)
        first, means = self.model.params.under("mtp.0"), torch.cat([streams.mean(1) for streams in after], -1)
        return rms_norm(first.linear("main_proj", means), self.config.rms_norm_eps, first["main_norm.weight"])

    @torch.no_grad()
    def hidden(self, context: Tensor, anchor: int, count: int) -> Tensor:
        """Merged streams of a block before the norm, [count, d].

        Args:
            context: states of all positions before the anchor.
            anchor: the token that follows the context.
            count: tokens to draft.
        """
        ids = torch.tensor([anchor] + [self.dspark.noise_token_id] * (count - 1))
        streams = self.model.params["embed.weight"][ids][:, None].expand(-1, self.config.hc_mult, -1)
        for stage in range(self.config.num_draft_layers):
            streams = self._stage(f"mtp.{stage}", streams, ids, context)
        return join_streams(self.config, streams, self.last)

    def logits(self, hidden: Tensor) -> Tensor:
        """Base logits of a block, without the Markov head: [count, d] -> [count, vocab]."""
        normed = rms_norm(hidden, self.config.rms_norm_eps, self.last["norm.weight"])
        return self.model.params.linear("head", normed)

    @torch.no_grad()
    def draft(self, context: Tensor, anchor: int, count: int) -> list[int]:
        """The best tokens, one after the other."""
        base, tokens = self.logits(self.hidden(context, anchor, count)), [anchor]
        for row in base:
            embedded = self.last["markov_head.markov_w1.weight"][tokens[-1]]
            tokens.append(int((row + self.last.linear("markov_head.markov_w2", embedded)).argmax()))
        return tokens[1:]

    def confidence(self, hidden: Tensor, before: Tensor) -> Tensor:
        """Probability of each draft [count], from the merged streams [count, d] and the tokens before [count]."""
        embedded = self.last["markov_head.markov_w1.weight"][before]
        return torch.sigmoid(self.last.linear("confidence_head.proj", torch.cat([hidden, embedded], -1)))[:, 0]

    def _stage(self, name: str, streams: Tensor, ids: Tensor, context: Tensor) -> Tensor:
        config, params, eps = self.config, self.model.params.under(name), self.config.rms_norm_eps
        x, post, comb = enter_sublayer(config, streams, params, "hc_attn")
        x = self._attention(name, rms_norm(x, eps, params["attn_norm.weight"]), context)
        streams = leave_sublayer(x, streams, post, comb)
        x, post, comb = enter_sublayer(config, streams, params, "hc_ffn")
        x = moe(config, rms_norm(x, eps, params["ffn_norm.weight"]), ids, params.under("ffn"))
        return leave_sublayer(x, streams, post, comb)

    def _attention(self, name: str, x: Tensor, context: Tensor) -> Tensor:
        config, params, eps = self.config, self.model.params.under(f"{name}.attn"), self.config.rms_norm_eps
        known, count = len(context), len(x)
        position = torch.arange(known, known + count)
        query = params.linear("wq_b", rms_norm(params.linear("wq_a", x), eps, params["q_norm.weight"]))
        query = rms_norm(query.view(count, config.num_attention_heads, config.head_dim), eps)
        query = rotate(query, position, self.frequencies)
        seen = torch.arange(max(0, known - config.sliding_window), known + count)
        states = torch.cat([context[-config.sliding_window :], x])
        key = rms_norm(params.linear("wkv", states), eps, params["kv_norm.weight"])
        key = store_key(rotate(key, seen, self.frequencies), config.qk_rope_head_dim, "exact")
        visible = torch.ones(count, len(seen), dtype=torch.bool)
        if self.causal:
            distance = position[:, None] - seen
            visible = (distance >= 0) & (distance < config.sliding_window)
        output = attend(query, key, visible, params["attn_sink"])
        output = rotate(output, position, self.frequencies, inverse=True).reshape(count, config.o_groups, -1)
        down = params["wo_a.weight"].view(config.o_groups, config.o_lora_rank, -1)
        return params.linear("wo_b", torch.einsum("tgi,gri->tgr", output, down).flatten(1))
