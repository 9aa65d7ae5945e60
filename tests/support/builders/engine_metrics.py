"""A page of metrics as vLLM writes it, and the names that are read of it."""

GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")
VLLM = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a, \\"b\\""} 2.0
vllm:num_requests_running{engine="1",model_name="c"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a"} 4.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 9.0
vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 100.0
"""
