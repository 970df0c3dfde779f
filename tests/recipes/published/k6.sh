# Flash, 4x MI355X 288 GB
export VLLM_ROCM_USE_AITER=1
vllm serve deepseek-ai/DeepSeek-V4-Flash --host localhost --port 8001 --dtype auto --kv-cache-dtype fp8 --tensor-parallel-size 4 --max-num-seqs 512 --max-num-batched-tokens 8192 \
  --distributed-executor-backend mp --trust-remote-code --gpu-memory-utilization 0.9 --tokenizer-mode deepseek_v4 --reasoning-parser deepseek_v4 --tool-call-parser deepseek_v4 --enable-auto-tool-choice \
  --compilation-config '{"mode": 3, "cudagraph_mode": "FULL_DECODE_ONLY"}'
