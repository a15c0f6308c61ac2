"""Inference engines: exact token ids in, generated tokens and their log-probs out.

``engine`` defines the protocol. ``local`` serves a transformers model in the worker's own process;
``batches`` groups its turns and ``sampling`` draws its tokens. ``vllm`` uses separate vLLM servers.
``waiting`` asks a failing engine again.
"""
