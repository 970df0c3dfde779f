"""What will happen when a serve command is run: parse errors, refusals, silent no-ops, what is missing, memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from dsv4_rocm.arch import Vendor
from dsv4_rocm.recipes.memory import plan_of
from dsv4_rocm.recipes.products import arch_of
from dsv4_rocm.recipes.schema import THINK_MAX_LEN
from dsv4_rocm.recipes.subject import VISIBLE, Answer, Subject
from dsv4_rocm.recipes.translations import RENAMED_CHOICES, RENAMED_FLAGS

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that will happen.

    Attributes:
        level: `error`: the server does not start or does not serve; `warning`: it does less than the command says;
            `note`: good to know.
        rule: name of the rule, for scripts.
        message: what was found and what to type.
    """

    level: Level
    rule: str
    message: str


Rule = Callable[[Subject, Answer], Iterator[Finding]]
NVIDIA_MOE = (
    *("batched_triton", "deep_gemm", "cutlass", "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl"),
    *("flashinfer_moe_ep_cutedsl", "flashinfer_moe_ep_mega_deep_gemm", "flashinfer_b12x", "b12x", "marlin", "humming"),
)
AMD_MOE = ("aiter", "aiter_triton_mxfp4_bf16", "flydsl")
IN_TREE_MOE = ("deep_gemm_mega_moe", "aiter_mega_moe")
WITHOUT_HYBRID = (
    *("LMCacheConnectorV1", "LMCacheMPConnector", "HF3FSKVConnector", "FlexKVConnectorV1", "ExampleConnector"),
)
NIXL_ONLY = ("enforce_handshake_compat",)


def lint(subject: Subject, answer: Answer) -> list[Finding]:
    """Everything that is known about a command, errors first."""
    found = [finding for rule in RULES for finding in rule(subject, answer)]
    order = ("error", "warning", "note")
    return sorted(dict.fromkeys(found), key=lambda finding: order.index(finding.level))


def _parse(subject: Subject, answer: Answer) -> Iterator[Finding]:
    for flag, message in answer.parse:
        name = flag.split(".")[0].replace("_", "-")
        new = RENAMED_FLAGS.get(name)
        if message == "unknown":
            hint = f"now: {new}" if new else "leave it out"
            yield Finding("error", "parse", f"{flag} is no flag of this vLLM; {hint}")
            continue
        value = subject.value(name) or ""
        new = RENAMED_CHOICES.get((name, value))
        text = message.replace("\n", " ")
        yield Finding("error", "parse", f"{flag or 'command'}: {text}" + (f"; now: {new}" if new else ""))


def _refused(subject: Subject, answer: Answer) -> Iterator[Finding]:
    for message in answer.refused:
        if message.startswith("No module named"):
            connector = subject.json("--kv-transfer-config").get("kv_connector", "an extension")
            yield Finding("warning", "not-installed", f"{connector}: {message} here, so it was not checked further")
        else:
            yield Finding("error", "refused", message)


def _checkpoint(subject: Subject, answer: Answer) -> Iterator[Finding]:
    found = subject.checkpoint
    if found is None:
        yield Finding(
            "error", "model", f"{subject.model or 'no model'}: expected DeepSeek-V4, like deepseek-ai/DeepSeek-V4-Flash"
        )
        return
    if found.experts == "nvfp4":
        text = f"{subject.model}: NVFP4 experts are not loaded by this package; use the checkpoint without NVFP4"
        yield Finding("error", "checkpoint", text)
    method = subject.json("--speculative-config").get("method")
    if method in ("mtp", "dspark") and method != found.draft:
        has = "DSpark stages" if found.draft == "dspark" else "an MTP layer"
        text = f"--speculative-config method={method}: {subject.model} carries {has}; use method {found.draft}"
        yield Finding("error", "draft", text)


def _translations(subject: Subject, answer: Answer) -> Iterator[Finding]:
    old = subject.json("--attention-config").get("use_fp4_indexer_cache")
    if old is not None:
        new = "indexer_kv_dtype=mxfp4" if str(old).lower() in ("true", "1") else "the default"
        text = f"--attention-config use_fp4_indexer_cache={old} (older recipes) is read as {new}"
        yield Finding("note", "translated", text)
    if subject.value("--kv-cache-dtype") == "fp8_e4m3":
        yield Finding("note", "translated", "--kv-cache-dtype fp8_e4m3 is read as fp8: fp8 key rows")


def _moe(subject: Subject, answer: Answer) -> Iterator[Finding]:
    backend, facts = subject.value("--moe-backend"), arch_of(subject.gpu)
    amd = facts.vendor is Vendor.AMD
    if backend is None or backend == "auto":
        if amd and not _on(subject, "VLLM_ROCM_USE_AITER"):
            text = "VLLM_ROCM_USE_AITER=1 is not set: experts run on Triton instead of AITER, slower"
            yield Finding("warning", "env", text)
        return
    leave = f"leave --moe-backend out on {subject.gpu.name} ({facts.name})"
    if backend in IN_TREE_MOE:
        text = f"--moe-backend {backend} is a part of vLLM's own model, which this package replaces; {leave}"
        yield Finding("error", "moe-backend", text)
    elif (amd and backend in NVIDIA_MOE) or (not amd and backend in AMD_MOE):
        yield Finding("error", "moe-backend", f"--moe-backend {backend} is for the other vendor's GPUs; {leave}")
    elif backend == "triton_unfused":
        text = "--moe-backend triton_unfused needs the triton_kernels package"
        yield Finding("note", "moe-backend", text + ("; without the flag AITER's kernel is taken" if amd else ""))
    if amd and backend in AMD_MOE and not _on(subject, "VLLM_ROCM_USE_AITER"):
        yield Finding("error", "env", f"--moe-backend {backend} needs VLLM_ROCM_USE_AITER=1")


def _gpus(subject: Subject, answer: Answer) -> Iterator[Finding]:
    config = answer.config
    if config is None:
        return
    local = config["tensor"] * config["pipeline"] * config["data_local"]
    product = f"tensor {config['tensor']} x pipeline {config['pipeline']} x data {config['data_local']}"
    if subject.gpus is not None and local > subject.gpus:
        text = f"{product} parallel is {local} GPUs, and the machine has {subject.gpus}; use smaller sizes"
        yield Finding("error", "gpus", text)
    elif subject.gpus is not None and local < subject.gpus and not any(name in subject.env for name in VISIBLE):
        yield Finding("note", "gpus", f"{product} parallel uses {local} of the {subject.gpus} GPUs")
    for name in VISIBLE:
        if name in subject.env:
            shown = len([one for one in subject.env[name].split(",") if one.strip()])
            if shown != local:
                level: Level = "error" if shown < local else "warning"
                text = f"{name}={subject.env[name]} shows {shown} GPUs, and {product} parallel takes {local}"
                yield Finding(level, "gpus", text)
    if config["pipeline"] > 1 and config["data"] > 1:
        yield Finding("note", "gpus", "pipeline and data parallel together were never run with this package")


def _graphs(subject: Subject, answer: Answer) -> Iterator[Finding]:
    config, asked = answer.config, answer.asked
    if config is None:
        return
    wanted = asked.get("cudagraph_mode")
    sized = subject.value("--max-cudagraph-capture-size")
    if config["eager"]:
        if wanted not in (None, "NONE") or sized:
            yield Finding("warning", "no-op", "--enforce-eager: the graphs that are asked for as well are not captured")
        return
    mode, support = wanted or config["cudagraph_mode"], config["graph_support"]
    if support == "NEVER" and mode != "NONE":
        text = (
            f"graphs: {mode} becomes pieces between attention calls, or nothing: the attention of this version is not"
        )
        yield Finding("warning", "graphs", f"{text} captured")
    elif mode == "FULL" and support != "ALWAYS":
        text = f"graphs: FULL becomes less: the attention of this version is captured for {support} batches only"
        yield Finding("warning", "graphs", text)


def _no_ops(subject: Subject, answer: Answer) -> Iterator[Finding]:
    if subject.has("--kv-cache-memory-bytes") and subject.has("--gpu-memory-utilization"):
        text = "--gpu-memory-utilization has no effect beside --kv-cache-memory-bytes"
        yield Finding("warning", "no-op", text)
    for flag, why in (
        ("--enable-chunked-prefill", "is the default"),
        ("--no-disable-hybrid-kv-cache-manager", "is the default here: the caches need that manager"),
    ):
        if subject.has(flag):
            yield Finding("note", "no-op", f"{flag} {why}")
    if subject.value("--tensor-parallel-size") == "1" and subject.value("--pipeline-parallel-size") == "1":
        yield Finding("note", "no-op", "--tensor-parallel-size 1 --pipeline-parallel-size 1 is the default")
    for name in answer.unknown_env:
        yield Finding("warning", "no-op", f"{name} is read by nothing in this vLLM")
    transfer = subject.json("--kv-transfer-config")
    extra = transfer.get("kv_connector_extra_config") or {}
    for key in NIXL_ONLY:
        if key in extra and "Nixl" not in str(transfer.get("kv_connector")):
            yield Finding("warning", "no-op", f"kv_connector_extra_config {key} is read by NIXL's connectors only")


def _parsers(subject: Subject, answer: Answer) -> Iterator[Finding]:
    if not subject.has("--reasoning-parser"):
        text = "without --reasoning-parser deepseek_v4 the thinking of an answer stands in its content"
        yield Finding("warning", "missing", text + " (thinking is on unless a request says otherwise)")
    if not subject.has("--tool-call-parser"):
        yield Finding("note", "missing", "without --tool-call-parser deepseek_v4 tool calls come as text")
    if answer.config is not None and answer.config["tokenizer_mode"] != "deepseek_v4":
        text = "--tokenizer-mode deepseek_v4 is missing: the checkpoint ships no Jinja template, so chats fail"
        yield Finding("error", "missing", text)


def _thinking(subject: Subject, answer: Answer) -> Iterator[Finding]:
    config = answer.config
    if config is not None and not answer.asked["max_model_len_auto"] and config["max_model_len"] < THINK_MAX_LEN:
        text = f"Think Max needs --max-model-len {THINK_MAX_LEN} or more, got {config['max_model_len']}"
        yield Finding("note", "think-max", text + ": long answers of that mode will be cut")


def _connector(subject: Subject, answer: Answer) -> Iterator[Finding]:
    transfer = subject.json("--kv-transfer-config")
    name = transfer.get("kv_connector")
    if name in WITHOUT_HYBRID:
        text = f"--kv-transfer-config kv_connector={name} switches the hybrid KV cache manager off, which these caches"
        yield Finding(
            "error", "connector", text + " need; use NixlConnector, MooncakeConnector or an offload connector"
        )
    elif name == "MoRIIOConnector":
        text = "--kv-transfer-config kv_connector=MoRIIOConnector was never run with these caches; use NixlConnector"
        yield Finding("error", "connector", text)
    elif name is not None:
        yield Finding("note", "connector", f"{name} is accepted; no transfer has been run with this package")
    for connector, variable, default in (
        ("MooncakeConnector", "VLLM_MOONCAKE_BOOTSTRAP_PORT", 8998),
        ("NixlConnector", "VLLM_NIXL_SIDE_CHANNEL_PORT", 5600),
    ):
        if name == connector and variable not in subject.env:
            text = f"{variable} is not set: the default {default} clashes when both servers stand on one machine"
            yield Finding("warning", "env", text)
    if name == "MooncakeStoreConnector" and "MOONCAKE_CONFIG_PATH" not in subject.env:
        yield Finding("error", "env", "MooncakeStoreConnector needs MOONCAKE_CONFIG_PATH: where its master is")


def _ops(subject: Subject, answer: Answer) -> Iterator[Finding]:
    plain = answer.config["plain_torch_ops"] if answer.config is not None else []
    if plain:
        kind = answer.config["indexer_kv_dtype"] if answer.config is not None else ""
        text = f"with indexer_kv_dtype={kind} these ops run in plain torch, slowly: {', '.join(plain)}"
        yield Finding("warning", "slow", text)


def _memory(subject: Subject, answer: Answer) -> Iterator[Finding]:
    found = subject.checkpoint
    if answer.config is None or found is None:
        return
    try:
        plan = plan_of(subject, answer, found)
    except ValueError as error:
        yield Finding("error", "memory", str(error))
        return
    length = plan.request.max_model_len
    gib = plan.missing_bytes / (1 << 30)
    if plan.fits:
        text = f"{plan.concurrency(length):,.1f} requests of {length:,} tokens at once; limited by {plan.limiting}"
        yield Finding("note", "memory", text)
    elif answer.asked["max_model_len_auto"] and plan.max_context:
        yield Finding("note", "memory", f"--max-model-len auto comes to about {plan.max_context} tokens")
    else:
        fits = f"--max-model-len {plan.max_context} fits" if plan.max_context else "no context length fits"
        text = f"{gib:.2f} GiB are missing on each {subject.gpu.name} ({plan.limiting}); {fits}"
        yield Finding("error", "memory", text)


def _on(subject: Subject, variable: str) -> bool:
    return subject.env.get(variable, "").lower() in ("1", "true")


RULES: tuple[Rule, ...] = (
    _parse,
    _refused,
    _checkpoint,
    _translations,
    _moe,
    _gpus,
    _graphs,
    _no_ops,
    _parsers,
    _thinking,
    _connector,
    _ops,
    _memory,
)
