# Flash, 1x MI325X 256 GB
export VLLM_ROCM_USE_AITER=1
vllm serve deepseek-ai/DeepSeek-V4-Flash --host 0.0.0.0 --port 8002 --tensor-parallel-size 1 --kv-cache-dtype fp8_e4m3 --max-model-len 4096 --enable-chunked-prefill --max-num-batched-tokens 256 \
  --kv-cache-memory-bytes 10000000000 --distributed-executor-backend mp --trust-remote-code --tokenizer-mode deepseek_v4 --moe-backend triton_unfused --enforce-eager
