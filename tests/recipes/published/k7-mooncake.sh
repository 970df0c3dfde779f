# Flash, 8x H200, prefill and decode with Mooncake
export VLLM_MOONCAKE_BOOTSTRAP_PORT=8998 TILELANG_CLEANUP_TEMP_FILES=1 VLLM_DISABLE_COMPILE_CACHE=1 VLLM_ENGINE_READY_TIMEOUT_S=3600 VLLM_RPC_TIMEOUT=600000 VLLM_LOG_STATS_INTERVAL=1 CUDA_VISIBLE_DEVICES=0,1,2,3
vllm serve deepseek-ai/DeepSeek-V4-Flash --trust-remote-code --kv-cache-dtype fp8 --block-size 256 --port 8000 --data-parallel-size 4 --enable-expert-parallel --tokenizer-mode deepseek_v4 --reasoning-parser deepseek_v4 \
      --max-model-len auto --max-num-batched-tokens 16384 --max-num-seqs 8 --enforce-eager --no-disable-hybrid-kv-cache-manager --disable-uvicorn-access-log \
      --kv-transfer-config '{"kv_connector":"MooncakeConnector","kv_role":"kv_both","kv_load_failure_policy":"fail","kv_buffer_device":"cuda","kv_connector_extra_config":{"enforce_handshake_compat":false,"mooncake_protocol":"rdma"}}'
export VLLM_MOONCAKE_BOOTSTRAP_PORT=9889 CUDA_VISIBLE_DEVICES=4,5,6,7
vllm serve deepseek-ai/DeepSeek-V4-Flash --trust-remote-code --kv-cache-dtype fp8 --block-size 256 --port 8001 --data-parallel-size 4 --enable-expert-parallel --tokenizer-mode deepseek_v4 --reasoning-parser deepseek_v4 \
      --max-model-len auto --max-num-seqs 512 --max-num-batched-tokens 512 --no-disable-hybrid-kv-cache-manager --disable-uvicorn-access-log \
      --compilation-config '{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY","max_cudagraph_capture_size":512,"compile_ranges_endpoints":[512]}' \
      --kv-transfer-config '{"kv_connector":"MooncakeConnector","kv_role":"kv_both","kv_load_failure_policy":"fail","kv_buffer_device":"cuda","kv_connector_extra_config":{"enforce_handshake_compat":false,"mooncake_protocol":"rdma"}}'
vllm-router --policy round_robin --vllm-pd-disaggregation --prefill http://localhost:8000 --decode http://localhost:8001 --host 127.0.0.1 --port 30000 --intra-node-data-parallel-size 4 --kv-connector mooncake   # or nixl
