"""Mixture of experts: the router's two forms, vLLM's fused experts, and plain torch experts for the host."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.model_executor.layers.activation import SiluAndMul, SiluAndMulWithClamp

from dsv4_rocm.attention.context import LayerContext
from dsv4_rocm.linear import Fp32OutputLinear, joined_linear, parameter, rank_slice, row_linear
from dsv4_rocm.model_spec import LayerSpec, ModelSpec

_SHARDED_DIM = {"w1": 0, "w3": 0, "w2": 1}  # the expert width, which the ranks share


def _hash_table(spec: ModelSpec) -> nn.Parameter:
    """Experts of each token id: int32 [vocab, top_k]; zeros are valid ids where no checkpoint fills it."""
    return nn.Parameter(torch.zeros(spec.vocab_size, spec.experts_per_token, dtype=torch.int32), requires_grad=False)


class Router(nn.Module):
    """Chooses experts: a table by token id in the first layers, `s + bias` afterwards; `s = sqrt(softplus(W h))`."""

    def __init__(self, spec: ModelSpec, hash_routed: bool) -> None:
        super().__init__()
        self.scaling, self.top_k = spec.routed_scaling_factor, spec.experts_per_token
        self.projection = Fp32OutputLinear(spec.hidden_size, spec.num_experts)
        self.hash_routed = hash_routed
        if hash_routed:
            self.tid2eid = _hash_table(spec)
        else:
            self.bias = parameter(spec.num_experts)

    def forward(self, hidden: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Experts int64 [tokens, top_k] and their weights fp32: unbiased scores, summing to the scaling factor."""
        score = torch.sqrt(nn.functional.softplus(self.projection(hidden)))
        if self.hash_routed:
            chosen = self.tid2eid[token_ids].long()
        else:
            chosen = (score + self.bias).topk(self.top_k, -1).indices
        weight = score.gather(1, chosen)
        return chosen, weight / weight.sum(-1, keepdim=True) * self.scaling


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float | None) -> Tensor:
    """`silu(min(gate, limit)) * clamp(up, -limit, limit)`."""
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return nn.functional.silu(gate) * up


class SharedExpert(nn.Module):
    """The expert every token passes through, with the same clamp as the routed ones."""

    def __init__(self, context: LayerContext, prefix: str) -> None:
        super().__init__()
        spec, quant = context.spec, context.quant_config
        widths = {"w1": spec.expert_width, "w3": spec.expert_width}
        self.w1_w3 = joined_linear(spec.hidden_size, widths, quant, f"{prefix}.w1_w3", split=widths)
        self.activation = SiluAndMul() if spec.swiglu_limit is None else SiluAndMulWithClamp(spec.swiglu_limit)
        self.w2 = row_linear(spec.expert_width, spec.hidden_size, quant, f"{prefix}.w2", reduce=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden], partial over the tensor-parallel ranks."""
        out: Tensor = self.w2(self.activation(self.w1_w3(hidden)))
        return out


class HostExperts(nn.Module):
    """Routed experts in plain torch, weights in the model's dtype: runs on any CPU, with any number of experts."""

    def __init__(self, context: LayerContext, prefix: str) -> None:
        super().__init__()
        spec = context.spec
        if spec.expert_width % context.tp_size:
            raise ValueError(
                f"--tensor-parallel-size {context.tp_size} must divide moe_intermediate_size ({spec.expert_width})"
            )
        width, dtype = spec.expert_width // context.tp_size, torch.get_default_dtype()
        self.limit = spec.swiglu_limit
        self.w1 = parameter(spec.num_experts, width, spec.hidden_size, dtype=dtype)
        self.w3 = parameter(spec.num_experts, width, spec.hidden_size, dtype=dtype)
        self.w2 = parameter(spec.num_experts, spec.hidden_size, width, dtype=dtype)

    def load(self, expert: int, name: str, suffix: str, weight: Tensor) -> Iterable[str]:
        """Take one expert's weight (this rank's share) and name the parameter it went to."""
        if suffix != "weight":
            raise ValueError(f"unexpected tensor {name}.{suffix} of expert {expert}")
        getattr(self, name).data[expert].copy_(rank_slice(weight, _SHARDED_DIM[name]))
        return (name,)

    def forward(self, hidden: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
        """[tokens, hidden], int64 [tokens, k], fp32 [tokens, k] -> [tokens, hidden], partial over the ranks."""
        out = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        for expert in chosen.unique().tolist():
            token, rank = torch.where(chosen == expert)
            rows = hidden[token]
            gate, up = rows @ self.w1[expert].T, rows @ self.w3[expert].T
            inner = clamped_swiglu(gate.float(), up.float(), self.limit) * weight[token, rank, None]
            out[token] += (inner.to(hidden.dtype) @ self.w2[expert].T).float()  # an expert has a token once
        return out


class HostMoE(nn.Module):
    """MoE of one layer on the host."""

    def __init__(self, context: LayerContext, layer: LayerSpec, prefix: str) -> None:
        super().__init__()
        self.tp_size = context.tp_size
        self.gate = Router(context.spec, layer.hash_routed)
        self.shared_experts = SharedExpert(context, f"{prefix}.shared_experts")
        self.experts = HostExperts(context, f"{prefix}.experts")

    def forward(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        """[tokens, hidden], int [tokens] -> [tokens, hidden]."""
        chosen, weight = self.gate(hidden, token_ids)
        out = (self.experts(hidden, chosen, weight) + self.shared_experts(hidden)).to(hidden.dtype)
        if self.tp_size == 1:
            return out  # type: ignore[no-any-return]
        reduced: Tensor = tensor_model_parallel_all_reduce(out)
        return reduced


class FusedExperts(nn.Module):
    """Routed experts through vLLM's FusedMoE, which takes the router and the shared expert with it."""

    def __init__(
        self, context: LayerContext, router: nn.Module, shared: nn.Module, hash_table: Tensor | None, prefix: str
    ) -> None:
        super().__init__()
        from vllm.model_executor.layers.fused_moe import FusedMoEFactory

        spec = context.spec
        self.fused: Any = FusedMoEFactory(
            shared_experts=shared,
            gate=router,
            num_experts=spec.num_experts,
            top_k=spec.experts_per_token,
            hidden_size=spec.hidden_size,
            intermediate_size=spec.expert_width,
            renormalize=True,
            quant_config=context.quant_config,
            prefix=prefix,
            scoring_func="sqrtsoftplus",
            routed_scaling_factor=spec.routed_scaling_factor,
            e_score_correction_bias=router.e_score_correction_bias,
            hash_indices_table=hash_table,
            swiglu_limit=spec.swiglu_limit,
            router_logits_dtype=torch.float32,
        )

    def load(self, expert: int, name: str, suffix: str, weight: Tensor) -> Iterable[str]:
        """Hand one expert's tensor to vLLM's loader and name the parameter it went to."""
        stacked = f"{'w2' if name == 'w2' else 'w13'}_{suffix}"
        for full, param in self.named_parameters():
            if full.endswith(f".{stacked}"):
                if weight.dtype == torch.float8_e8m0fnu and param.dtype == torch.uint8:
                    weight = weight.view(torch.uint8)  # a copy would convert the exponent bytes to numbers
                loader: Any = param.weight_loader  # type: ignore[attr-defined]
                loader(param, weight, full, shard_id=name, expert_id=expert, return_success=True)
                return (full,)
        raise ValueError(f"vLLM's fused experts have no parameter {stacked} for expert {expert}")


class FusedMoE(nn.Module):
    """MoE of one layer on a GPU: vLLM's kernels."""

    def __init__(self, context: LayerContext, layer: LayerSpec, prefix: str) -> None:
        super().__init__()
        from vllm.model_executor.layers.fused_moe import GateLinear

        spec = context.spec
        self.gate: Any = GateLinear(
            input_size=spec.hidden_size,
            output_size=spec.num_experts,
            bias=False,
            out_dtype=torch.float32,
            prefix=f"{prefix}.gate",
        )
        self.gate.e_score_correction_bias = None
        self.gate.tid2eid = None
        if layer.hash_routed:
            self.gate.tid2eid = _hash_table(spec)
        else:
            self.gate.e_score_correction_bias = parameter(spec.num_experts)
        self.shared_experts = SharedExpert(context, f"{prefix}.shared_experts")
        self.experts = FusedExperts(context, self.gate, self.shared_experts, self.gate.tid2eid, f"{prefix}.experts")

    def forward(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        """[tokens, hidden], int [tokens] -> [tokens, hidden]."""
        out: Tensor = self.experts.fused(hidden_states=hidden, router_logits=hidden, input_ids=token_ids)
        return out


def make_moe(context: LayerContext, layer: LayerSpec, prefix: str) -> HostMoE | FusedMoE:
    """The MoE for this server: plain torch where weights are dequantized at load, vLLM's elsewhere."""
    return (HostMoE if context.dequantize_at_load else FusedMoE)(context, layer, prefix)
