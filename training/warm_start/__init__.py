"""The warm start: how a tiny policy learns to read before reinforcement learning.

What lives here makes a Qwen2-VL checkpoint out of nothing, offline: its tokenizer and random weights (``tiny_checkpoint``), the circuit of
matching and copying laid into them (``reading_heads``), synthetic pages and tasks (``synthetic``), the curriculum over them
(``curriculum``), the settings that shipped (``recipe``) and the loop (``pretrain``). Prompts are rendered by ``training.policy``, so
the policy is pre-trained on the very text that it meets in rollouts. No page, name list, word list or seed of MiniWoB++ may come in
here, and no browser: demonstrations are collected by ``tasks_lib.warm_start.stages``.
"""
