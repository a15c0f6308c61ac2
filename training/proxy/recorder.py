"""Answers a chat request with a policy, and records the call before it is answered."""

from __future__ import annotations

import asyncio
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import Field

from envs.types import TokenSpan
from training.policy.bans import ENDS
from training.policy.rendered import RenderedPrompt
from training.proxy.chat import Chat, SampledAnswers, SpecialTokens, key_of, name_images, read_answer, read_chat
from training.proxy.pictures import read_picture
from training.proxy.records import SESSION_NAME, CallStore, RecordedCall
from training.proxy.requests import MAX_TEMPERATURE, ChatRequest, RefusedCall
from training.serving.engine import Engine, Generation, GenerationRequest, Picture
from training.serving.waiting import generate_patiently
from training.settings import Settings

if TYPE_CHECKING:  # imports torch: seconds
    from training.policy.renderer import Renderer


class ProxyOptions(Settings):
    """Settings of the proxy."""

    model: str = Field("policy", min_length=1, description="Name of the served model; others are refused.")
    seed: int = Field(0, ge=0, description="Seed of the sampling noise, with the session and the call's number.")
    temperature: float | None = Field(
        None,
        ge=0,
        le=MAX_TEMPERATURE,
        description="Temperature of all calls, whatever they ask for; else theirs, or 1.",
    )
    max_new_tokens: int = Field(512, ge=1, description="Largest turn in tokens, for calls that name none.")
    image_pixels: int = Field(1280 * 768, ge=1024, le=2**24, description="Largest image; larger ones are scaled down.")
    patience: float = Field(300.0, ge=0, le=86_400, description="Seconds to wait for a failing engine.")


@dataclass(slots=True)
class _AgentSession:
    """State of a session, made anew from its records when the proxy starts again."""

    next_index: int = 0
    sampled: SampledAnswers = field(default_factory=SampledAnswers)

    def add(self, call: RecordedCall) -> None:
        calls = [(tool["function"]["name"], tool["function"]["arguments"]) for tool in call.tool_calls]
        self.sampled.answers.append((key_of(call.content, calls), call.response_ids))


class Recorder:
    """The policy behind the proxy. Used from one event loop.

    Args:
        engine: Engine that serves the policy.
        renderer: Renderer of the same policy.
    """

    def __init__(self, engine: Engine, renderer: Renderer, store: CallStore, options: ProxyOptions) -> None:
        self.options = options
        self._engine, self._renderer, self._store = engine, renderer, store
        self._special = SpecialTokens([*ENDS, *renderer.tokenizer.convert_ids_to_tokens(renderer.banned_ids)])
        self._sessions: dict[str, _AgentSession] = {}
        # One thread: threads cannot share a tokenizer. Its queue keeps calls in order of arrival.
        self._thread = ThreadPoolExecutor(1, "encode")

    async def complete(self, session: str, step: int | None, request: ChatRequest) -> RecordedCall:
        """Generate and record one turn.

        Raises:
            RefusedCall: The session's name, the model, an image or the prompt's length is refused.
            EngineError, PolicyError: The engine failed.
            StorageError: The call could not be recorded; it must not be answered then.
        """
        created = time.time()
        if not SESSION_NAME.fullmatch(session):
            raise RefusedCall(
                f"the session's name {session[:100]!r} is not one of letters, digits, '.', '_' and '-', at most 128",
                code="invalid_session",
                param="x-rollwright-session",
            )
        if request.model != self.options.model:
            raise RefusedCall(
                f"The model {request.model!r} does not exist; this proxy serves {self.options.model!r} (--model).",
                code="model_not_found",
                param="model",
                status=404,
            )
        loop = asyncio.get_running_loop()
        index, chat, prompt = await loop.run_in_executor(self._thread, self._encode, session, request)
        asked = self._generation_request(session, index, request, chat, prompt)
        turn = await generate_patiently(self._engine, asked, self.options.patience)
        if turn.finish_reason == "context_overflow":
            raise self._too_long(prompt, asked.max_new_tokens)
        record = self._record(session, index, step, request, chat, asked, turn)
        record = record.model_copy(update={"created": created, "seconds": time.time() - created})
        return await loop.run_in_executor(self._thread, self._keep, record, chat)

    def _encode(self, session: str, request: ChatRequest) -> tuple[int, Chat, RenderedPrompt]:
        """Return the call's number, and its messages and prompt."""
        if session not in self._sessions:
            state, calls = _AgentSession(), self._store.calls(session)
            for call in calls:
                state.add(call)
            state.next_index = calls[-1].index + 1 if calls else 0
            self._sessions[session] = state
        state = self._sessions[session]
        chat = read_chat(request.messages, state.sampled, self._special, self._picture)
        tools = orjson.dumps(request.shown_tools).decode() if request.shown_tools else ""
        prompt = self._renderer.encode_turns(
            chat.turns, [picture.size for picture in chat.pictures], chat.system, tools
        )
        if len(prompt.ids) + (request.turn_tokens or 1) > self._renderer.context_tokens:
            raise self._too_long(prompt, request.turn_tokens or 1)
        index, state.next_index = state.next_index, state.next_index + 1
        return index, chat, prompt

    def _picture(self, url: str, param: str) -> Picture:
        return read_picture(url, param, lambda size: self._renderer.fitting_size(size, self.options.image_pixels))

    def _too_long(self, prompt: RenderedPrompt, tokens: int) -> RefusedCall:
        return RefusedCall(
            f"This model's maximum context length is {self._renderer.context_tokens} tokens or less: the messages have "
            f"{len(prompt.ids)}, and {tokens} are asked for. Shorten the messages or max_completion_tokens.",
            code="context_length_exceeded",
            param="messages",
        )

    def _generation_request(
        self, session: str, index: int, request: ChatRequest, chat: Chat, prompt: RenderedPrompt
    ) -> GenerationRequest:
        asked = request.temperature if self.options.temperature is None else self.options.temperature
        limit = min(self.options.max_new_tokens, self._renderer.context_tokens - len(prompt.ids))
        key, seed = f"{session}/{index}", self.options.seed
        if request.seed is not None:  # as OpenAI's: the same seed and messages give the same turn
            digest = sha256(orjson.dumps(prompt.ids))
            for picture in chat.pictures:
                digest.update(picture.jpeg)
            key, seed = digest.hexdigest(), request.seed
        return GenerationRequest(
            prompt=prompt,
            pictures=chat.pictures,
            key=key,
            episode=session,
            seed=seed,
            max_new_tokens=request.turn_tokens or limit,
            temperature=1.0 if asked in (None, 0) else float(asked),
            greedy=asked == 0,
        )

    def _record(
        self,
        session: str,
        index: int,
        step: int | None,
        request: ChatRequest,
        chat: Chat,
        asked: GenerationRequest,
        turn: Generation,
    ) -> RecordedCall:
        text = self._renderer.decode(turn.token_ids)
        content, calls = read_answer(text, tools=bool(request.shown_tools))
        spans = tuple(TokenSpan(version=span.version, start=span.start, end=span.end) for span in turn.version_spans)
        return RecordedCall(
            session=session,
            index=index,
            step=step,
            created=0.0,
            seconds=0.0,
            model=request.model,
            template=self._renderer.template_name,
            messages=tuple(message for message, _ in chat.messages),
            tools=request.shown_tools,
            temperature=asked.temperature,
            greedy=asked.greedy,
            max_new_tokens=asked.max_new_tokens,
            seed=request.seed,
            prompt_ids=asked.prompt.ids,
            response_ids=turn.token_ids,
            logprobs=turn.logprobs,
            policy_version=min((span.version for span in spans), default=0),
            version_spans=spans,
            finish_reason=turn.finish_reason,
            text=text,
            content=content,
            tool_calls=tuple(
                {
                    "id": f"call_{uuid.uuid5(uuid.NAMESPACE_OID, f'{session}/{index}/{number}').hex[:24]}",
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for number, (name, arguments) in enumerate(calls)
            ),
        )

    def _keep(self, record: RecordedCall, chat: Chat) -> RecordedCall:
        """Store the images, then the record, and return it with their names."""
        messages: list[dict[str, Any]] = []
        images: list[str] = []
        for message, pictures in chat.messages:
            names = [self._store.run.put_blob(picture.jpeg) for picture in pictures]
            messages.append(name_images(message, names))
            images += names
        record = record.model_copy(update={"messages": tuple(messages), "images": tuple(images)})
        self._store.write(record)
        self._sessions[record.session].add(record)
        return record

    def token_texts(self, record: RecordedCall) -> list[str]:
        """Return the text of each response token."""
        return [self._renderer.tokenizer.decode([token]) for token in record.response_ids]
