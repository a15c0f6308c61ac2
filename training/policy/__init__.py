"""A policy's input and output: prompts, token ids, and LoRA adapters.

Pure but for the renderer, which needs a checkpoint's tokenizer and LLaMA-Factory's template, and
the adapters, which load models. No inference and no training here.
"""
