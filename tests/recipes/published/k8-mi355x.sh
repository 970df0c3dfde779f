# Pro, 8x MI355X
VLLM_ROCM_USE_AITER=1 vllm serve deepseek-ai/DeepSeek-V4-Pro --trust-remote-code --kv-cache-dtype fp8 --data-parallel-size 8 --enable-expert-parallel --gpu-memory-utilization 0.9 --max-num-seqs 128 \
  --max-num-batched-tokens 8192 --distributed-executor-backend mp --tokenizer-mode deepseek_v4 --reasoning-parser deepseek_v4 --tool-call-parser deepseek_v4 --enable-auto-tool-choice
