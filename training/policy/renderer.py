"""Prompt text and screenshot size to token ids, through LLaMA-Factory's template and multimodal plugin.

The rollout renders with this, and the trainer feeds the ids that were kept, so both sides see the same tokens.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from envs.types import PolicyError
from training.policy.templates import derive_template
from training.quiet import quiet_model_libraries


class PromptRenderer:
    """Encodes prompts for one checkpoint's tokenizer and chat template.

    Args:
        checkpoint: Hugging Face checkpoint folder (tokenizer and processor files are read, not the weights).
        template: name of a LLaMA-Factory template with a multimodal plugin, e.g. ``qwen2_vl``; empty: that of the checkpoint's model.

    Raises:
        PolicyError: no checkpoint folder, no image processor, or no template was named and the model's is not known.
    """

    def __init__(self, checkpoint: Path, template: str) -> None:
        quiet_model_libraries()
        from llamafactory.data import get_template_and_fix_tokenizer
        from llamafactory.hparams import DataArguments, ModelArguments
        from llamafactory.model import load_tokenizer

        if not (Path(checkpoint) / "config.json").exists():
            raise PolicyError(f"{checkpoint} is no Hugging Face checkpoint folder: it has no config.json")
        template = template or derive_template(Path(checkpoint))
        if not template:
            raise PolicyError(f"the chat template of {checkpoint} is not known; set policy.template")
        modules = load_tokenizer(ModelArguments(model_name_or_path=str(checkpoint)))
        self.tokenizer: Any = modules["tokenizer"]
        self.processor: Any = modules["processor"]
        if self.processor is None:
            raise PolicyError(
                f"{checkpoint} has no image processor (preprocessor_config.json); a vision-language one is needed"
            )
        self.template: Any = get_template_and_fix_tokenizer(self.tokenizer, DataArguments(template=template))
        self._expand_image = lru_cache(maxsize=64)(self._expand_image_uncached)

    def encode(self, text: str, image_size: tuple[int, int]) -> list[int]:
        """Token ids of the whole prompt: system turn, one image of (width, height) in its own pixels, ``text``, the opened assistant turn."""
        messages = [
            {"role": "user", "content": f"{self._expand_image(image_size)}\n{text}"},
            {"role": "assistant", "content": ""},
        ]
        prompt_ids, _ = self.template.encode_oneturn(self.tokenizer, messages)
        return list(prompt_ids)

    def _expand_image_uncached(self, image_size: tuple[int, int]) -> str:
        """The placeholder text of one image; it depends on the size alone, so a blank image serves."""
        blank = Image.new("RGB", image_size)
        messages = [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": ""}]
        expanded = self.template.mm_plugin.process_messages(messages, [blank], [], [], self.processor)
        return str(expanded[0]["content"])

    def image_inputs(self, images: list[bytes]) -> dict[str, torch.Tensor]:
        """``pixel_values`` and ``image_grid_thw`` of JPEG images in order, made as the trainer's collator makes them."""
        count = len(images)
        inputs = self.template.mm_plugin.get_mm_inputs(
            images, [], [], [1] * count, [0] * count, [0] * count, [[] for _ in range(count)], self.processor
        )
        return {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}

    def decode(self, ids: list[int]) -> str:
        """Text of generated ids, special tokens left out."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))
