"""The model server of tests and benches: `python -P -m rig.engine`. Its arguments and prompts steer it.

It serves the endpoints of real servers: OpenAI's chat, completions, responses, embeddings, audio and images,
Anthropic's messages, and vLLM's rerank, score, classify, pooling, tokenize and detokenize. A request with tools is
answered by a call of one. An answer has as many tokens as the request allows; each event of a stream has the host's
monotonic time as `monotonic_s`. The port also serves `/simulated/counters` and `/simulated/last-body`.

Words between brackets, anywhere in a prompt, steer one answer: `[simulate tokens=20 token_seconds=0.05 wait=1]`.

    tokens=N, token_bytes=N          tokens of the answer, and the least size of each
    token_seconds=S, wait=S          time for each token, and before the first byte
    refuse=STATUS                    answer with this status
    hang                             from here on the engine generates nothing, while its port answers
    die, cut, silent                 kill the process, cut the connection, or fall silent: at once, or after `=N` tokens
    usage=no, cached=N               state no usage, or N cached tokens
    gzip                             compress the answer, if the client accepts that
    id=NAME                          name of the request in the file that SIMULATED_ENGINE_JOURNAL names

`rig.gpuward` starts Gpuward with this engine as `simulated`; manifests then may have the args of `rig.simulated_args`.
"""
