"""Warm start: a tiny policy learns to read before reinforcement learning.

This package makes a Qwen2-VL checkpoint offline, without an existing one. ``tiny_checkpoint`` makes
tokenizer and random weights, and ``reading_heads`` writes a circuit for matching and copying into
them. ``synthetic`` makes pages and tasks, ``curriculum`` mixes them into batches, ``recipe`` holds
the settings of the shipped policy, and ``pretrain`` is the training loop. Prompts are rendered by
``training.policy``, so the policy is pre-trained on the text that it meets in rollouts.

No page, name list, word list or seed of MiniWoB++ may enter this package, and no browser:
``tasks_lib.warm_start.stages`` collects demonstrations.
"""
