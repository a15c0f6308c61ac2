"""Turns prompt text and image sizes into token ids with LLaMA-Factory's template.

The template's multimodal plugin expands the image placeholders. The rollout renders with this
module, and the trainer feeds the ids that were recorded, so both sides see the same tokens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors import SafetensorError

from envs.types import PolicyError
from training.ledger.checkpoint_files import check_checkpoint_files
from training.ledger.disk import raise_read_errors, read_fault
from training.policy.bans import banned_ids
from training.policy.context import ChatTurn, Message
from training.policy.rendered import RenderedPrompt
from training.policy.templates import derive_template
from training.quiet import quiet_model_libraries

UNBOUNDED_PIXELS = 2**30
"""LLaMA-Factory's ``image_max_pixels``. Images are scaled once, when they are taken
(`Renderer.fitting_size`). Its plugin must not scale them again, since servers do not have it."""


@contextmanager
def loading(checkpoint: Path) -> Iterator[None]:
    """Check a checkpoint's files, and name it in the errors of the block.

    Raises:
        StorageError: A file is not the one that was published, or is cut short; names it.
        ReadError: A file cannot be read for the moment: its disk or network fails.
        PolicyError: The checkpoint cannot be loaded.
    """
    with raise_read_errors(checkpoint):
        check_checkpoint_files(checkpoint)
        try:
            yield
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            if read_fault(error) is not None:
                raise  # a passing fault, not one of the checkpoint
            why = str(error).strip().partition("\n")[0]
            raise PolicyError(f"checkpoint {checkpoint} cannot be loaded: {type(error).__name__}: {why}") from error


class Renderer:
    """Encodes prompts for one checkpoint's tokenizer and chat template, and decodes turns.

    Args:
        checkpoint: Hugging Face checkpoint folder. Tokenizer and processor files are read, not the
            weights.
        template: Name of a LLaMA-Factory template with a multimodal plugin, e.g. ``qwen2_vl``. If
            it is empty, the model's is derived.

    Raises:
        PolicyError: No checkpoint folder, no image processor, no image token, or no template was
            named and the model's is not known.
        StorageError, ReadError: As in `loading`.
    """

    def __init__(self, checkpoint: Path, template: str) -> None:
        checkpoint = Path(checkpoint)
        if not (checkpoint / "config.json").exists():
            raise PolicyError(f"{checkpoint} is no Hugging Face checkpoint folder: it has no config.json")
        template = template or derive_template(checkpoint)
        if not template:
            raise PolicyError(f"the chat template of {checkpoint} is not known; set policy.template")
        with loading(checkpoint):
            self._load(checkpoint, template)
        self._expand_image = lru_cache(maxsize=64)(self._expand_image_uncached)

    def _load(self, checkpoint: Path, template: str) -> None:
        quiet_model_libraries()
        from llamafactory.data import get_template_and_fix_tokenizer
        from llamafactory.hparams import DataArguments, ModelArguments
        from llamafactory.model import load_tokenizer
        from transformers import AutoConfig

        modules = load_tokenizer(ModelArguments(model_name_or_path=str(checkpoint), image_max_pixels=UNBOUNDED_PIXELS))
        self.tokenizer: Any = modules["tokenizer"]
        self.processor: Any = modules["processor"]
        if self.processor is None:
            raise PolicyError(
                f"{checkpoint} has no image processor (preprocessor_config.json); a vision-language one is needed"
            )
        self.template_name = template
        self.template: Any = get_template_and_fix_tokenizer(self.tokenizer, DataArguments(template=template))
        self.image_token: str = self.template.mm_plugin.image_token or ""
        if not self.image_token:
            raise PolicyError(
                f"the chat template {template} shows no images; set policy.template to that of {checkpoint}'s model"
            )
        self.image_token_id: int = self.tokenizer.convert_tokens_to_ids(self.image_token)
        self._ends = frozenset(end_ids(checkpoint, self.tokenizer))
        self._turn_close: list[int] = self.template._convert_elements_to_ids(
            self.tokenizer, self.template.format_assistant.apply(content="")
        )
        model = AutoConfig.from_pretrained(checkpoint)
        self.context_tokens: int = model.get_text_config().max_position_embeddings
        """Largest number of tokens of prompt and turn that the model takes."""
        self.banned_ids = banned_ids(checkpoint)
        """Ids of the tokens that a policy must never generate, ascending."""

    def encode(self, text: str, sizes: Sequence[tuple[int, int]]) -> RenderedPrompt:
        """Encode a prompt of one user turn.

        It has the system turn, the images, ``text`` and the opened assistant turn.

        Args:
            sizes: (width, height) of the images in pixels.
        """
        placeholders = [self._expand_image(size) for size in sizes]
        messages = [
            {"role": "user", "content": f"{''.join(placeholders)}\n{text}"},
            {"role": "assistant", "content": ""},
        ]
        ids, _ = self.template.encode_oneturn(self.tokenizer, messages)
        return find_images(
            ids, self.image_token_id, [placeholder.count(self.image_token) for placeholder in placeholders]
        )

    def encode_conversation(
        self, messages: Sequence[Message], sizes: Sequence[tuple[int, int]], system: str = "", tools: str = ""
    ) -> RenderedPrompt:
        """Encode the prompt of a conversation whose last message is the user's.

        Turns of the assistant go in as they were sampled; the text of one without ids is encoded.
        Neither gets the empty thought that a template of a thinking model puts before answers.

        Args:
            sizes: (width, height) of all images, in the order of the messages.
            system: Text of the system turn; empty: the template's own.
            tools: JSON list of the functions that the chat template shows; empty: none.

        Raises:
            PolicyError: The numbers of images and sizes differ, or the template does not fit the
                processor.
        """
        turns = [
            ChatTurn(
                message.role,
                (
                    *[None] * len(message.pictures),
                    *["\n"] * bool(message.pictures and message.role == "user"),
                    message.text,
                ),
                message.ids,
            )
            for message in messages
        ]
        return self.encode_turns(turns, sizes, system, tools)

    def encode_turns(
        self, turns: Sequence[ChatTurn], sizes: Sequence[tuple[int, int]], system: str = "", tools: str = ""
    ) -> RenderedPrompt:
        """Encode a conversation as `encode_conversation` does, with images anywhere in its texts.

        Args:
            turns: Turns of the user and the assistant by turns, the first and the last the user's.

        Raises:
            PolicyError: As in `encode_conversation`.
        """
        if (named := sum(turn.parts.count(None) for turn in turns)) != len(sizes):
            raise PolicyError(
                f"a prompt names {named} pictures, and {len(sizes)} sizes are given: one for each is needed"
            )
        placeholders = [self._expand_image(size) for size in sizes]
        unused = iter(placeholders)
        texts = [
            {"role": turn.role, "content": "".join(next(unused) if part is None else part for part in turn.parts)}
            for turn in turns
        ]
        pairs = self.template.encode_multiturn(
            self.tokenizer, [*texts, {"role": "assistant", "content": ""}], system=system or None, tools=tools or None
        )
        answers = [(turn, text["content"]) for turn, text in zip(turns, texts, strict=True) if turn.role == "assistant"]
        ids: list[int] = []
        for (query, _), (turn, text) in zip(pairs[:-1], answers, strict=True):
            turn_ids = turn.ids or self.tokenizer.encode(text, add_special_tokens=False)
            ids += [*query, *self._close_turn(turn_ids)]
        ids += pairs[-1][0]
        return find_images(
            ids, self.image_token_id, [placeholder.count(self.image_token) for placeholder in placeholders]
        )

    def _close_turn(self, ids: Sequence[int]) -> list[int]:
        """Return a turn's ids, closed as the template closes the assistant's turn."""
        kept = list(ids)
        while kept and kept[-1] in self._ends:
            kept.pop()
        return [*kept, *self._turn_close]

    def encode_response(self, text: str) -> list[int]:
        """Return the token ids of a turn with this text, the end-of-turn token included."""
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]

    def _expand_image_uncached(self, image_size: tuple[int, int]) -> str:
        """Return an image's placeholder text.

        It depends on the size alone, so a blank image serves.
        """
        blank = Image.new("RGB", image_size)
        messages = [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": ""}]
        expanded = self.template.mm_plugin.process_messages(messages, [blank], [], [], self.processor)
        return str(expanded[0]["content"])

    def fitting_size(self, size: tuple[int, int], pixels: int) -> tuple[int, int]:
        """Return the size to which an image is scaled: at most ``pixels``, in whole patches.

        Engine, server and trainer take an image of this size unchanged.

        Args:
            size: (width, height); kept where it has no more than ``pixels``.
        """
        width, height = size
        if width * height <= pixels:
            return size
        processor = self.processor.image_processor
        factor = processor.patch_size * processor.merge_size
        scale = math.sqrt(pixels / (width * height))
        fitted = [max(factor, int(side * scale) // factor * factor) for side in size]
        return fitted[0], fitted[1]

    def image_inputs(self, images: list[bytes]) -> dict[str, torch.Tensor]:
        """Return ``pixel_values`` and ``image_grid_thw`` of JPEG images, in order.

        They are made as the trainer's collator makes them. Empty without images.
        """
        count = len(images)
        if not count:
            return {}
        inputs = self.template.mm_plugin.get_mm_inputs(
            images, [], [], [1] * count, [0] * count, [0] * count, [[] for _ in range(count)], self.processor
        )
        return {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of generated ids, special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def find_images(ids: Sequence[int], image_token: int, lengths: Sequence[int]) -> RenderedPrompt:
    """Return the prompt with the places of its images.

    Args:
        lengths: Number of placeholders of each image.

    Raises:
        PolicyError: The prompt has more placeholders than the images, or fewer.
    """
    offsets = [offset for offset, token in enumerate(ids) if token == image_token]
    if len(offsets) != sum(lengths):
        raise PolicyError(
            f"a prompt has {len(offsets)} image placeholders and its {len(lengths)} images have {sum(lengths)}: "
            f"policy.template does not fit the checkpoint's processor"
        )
    firsts = [offsets[end - length] for length, end in zip(lengths, accumulate(lengths), strict=True)]
    repeated = set(offsets) - set(firsts)
    short = tuple(token for offset, token in enumerate(ids) if offset not in repeated)
    return RenderedPrompt(tuple(ids), short, tuple(zip(firsts, lengths, strict=True)))


def end_ids(checkpoint: Path, tokenizer: Any) -> list[int]:
    """Return the ids of the tokens that end a turn.

    A checkpoint names them, or else its tokenizer does. Nothing else of a checkpoint's
    generation_config.json is used: its penalties, filters and lengths would change the distribution
    that turns are sampled from, and the trainer would not know of it.

    Raises:
        PolicyError: None is named.
    """
    names = ("generation_config.json", "config.json")  # older checkpoints name them in the second
    files = [json.loads(path.read_bytes()) for name in names if (path := checkpoint / name).exists()]
    named = next((ids for file in files if (ids := file.get("eos_token_id")) is not None), tokenizer.eos_token_id)
    ends = [named] if isinstance(named, int) else list(named or [tokenizer.eos_token_id])
    if None in ends:
        raise PolicyError(
            "the checkpoint names no end-of-turn token; set eos_token_id in its generation_config.json,"
            " or eos_token in its tokenizer_config.json"
        )
    return ends
