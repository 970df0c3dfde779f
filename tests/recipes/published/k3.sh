# Flash, one DGX Station GPU, MTP-3
vllm serve deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 1 --pipeline-parallel-size 1 --kv-cache-dtype fp8 --trust-remote-code --block-size 256 --gpu-memory-utilization 0.92 \
  --compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}' --attention_config.use_fp4_indexer_cache True --tokenizer-mode deepseek_v4 --tool-call-parser deepseek_v4 \
  --enable-auto-tool-choice --reasoning-parser deepseek_v4 --max-cudagraph-capture-size 128 --speculative-config '{"method":"mtp","num_speculative_tokens":3}'
