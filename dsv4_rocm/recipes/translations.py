"""Flags and values of older recipes that today's parser does not know, and what to type now."""

RENAMED_FLAGS = {
    "--disable-log-requests": "nothing to type, requests are logged only with --enable-log-requests",
    "--enable-reasoning": "--reasoning-parser deepseek_v4",
    "--swap-space": "nothing to type, preempted requests are computed again",
    "--num-scheduler-steps": "nothing to type, scheduling is asynchronous by default",
    "--use-v2-block-manager": "nothing to type",
    "--cuda-graph-sizes": "--cudagraph-capture-sizes",
    "--preemption-mode": "nothing to type, preempted requests are computed again",
    "--guided-decoding-backend": "--structured-outputs-config",
    "--num-lookahead-slots": "nothing to type",
    "--max-seq-len-to-capture": "--max-cudagraph-capture-size",
    "--task": "nothing to type, the model generates",
    "--rope-scaling": "nothing to type, config.json has it",
    "--rope-theta": "nothing to type, config.json has it",
}
RENAMED_CHOICES = {
    ("--kv-cache-dtype", "bf16"): "--kv-cache-dtype bfloat16",
    ("--tool-call-parser", "deepseek-v4"): "--tool-call-parser deepseek_v4",
    ("--tokenizer-mode", "deepseek-v4"): "--tokenizer-mode deepseek_v4",
}
