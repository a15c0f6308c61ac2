"""Configuration of the judge: its endpoint, models, style, limits and budget."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from envs.chat import SpendingLimits
from envs.rewards.judge.records import Purpose
from envs.types import ConfigError, Record


class JudgeStyle(StrEnum):
    """Method by which an episode is judged."""

    WEBGYM = "webgym"
    """Blocking, keyframes, hallucination check, then each fact and the reference answer.

    It gives partial credit.
    """
    WEBJUDGE = "webjudge"
    """Key points, screenshots scored 1 to 5, one verdict (Online-Mind2Web)."""
    WEBVOYAGER = "webvoyager"
    """One verdict on the last screenshots and the answer."""


class Structured(StrEnum):
    """Means by which the server enforces the form of a reply."""

    NONE = "none"
    """No means: only the prompt states the form. Every endpoint can do that."""
    JSON_SCHEMA = "json_schema"
    """A schema is sent with each question (``response_format``).

    vLLM, SGLang, llama.cpp and others then generate nothing else.
    """


class JudgeModels(Record):
    """Model of each purpose; the default model serves the purposes that are left out."""

    model_config = ConfigDict(json_schema_extra={"short": "a name alone"})

    default: str = Field(min_length=1, examples=["Qwen3-VL-8B"], description="Model name at the endpoint.")
    keyframe: str | None = Field(None, description="Selects screenshots; may be small.")
    blocking: str | None = Field(None, description="Finds captchas and walls; may be small.")
    criterion_a: str | None = Field(None, description="Decides facts and verdicts.")
    criterion_b: str | None = Field(None, description="Finds claims that were not seen.")
    reference: str | None = Field(None, description="Compares answers.")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        """Read a single name as the default model."""
        return {"default": value} if isinstance(value, str) else value

    def of(self, purpose: Purpose) -> str:
        """Return the model that answers questions of this purpose."""
        chosen = {
            Purpose.KEYFRAME: self.keyframe,
            Purpose.RELEVANCE: self.keyframe,
            Purpose.BLOCKING: self.blocking,
            Purpose.CRITERION_A: self.criterion_a,
            Purpose.VERDICT: self.criterion_a,
            Purpose.KEY_POINTS: self.criterion_a,
            Purpose.CRITERION_B: self.criterion_b,
            Purpose.REFERENCE: self.reference,
            Purpose.SAME_ANSWER: self.reference,
            Purpose.PICTURES: self.criterion_a,
            Purpose.RUBRIC: self.default,
            Purpose.INSTRUCTION: self.default,
        }[purpose]
        return chosen or self.default


class JudgeConfig(Record):
    """Endpoint, style and limits of the judge."""

    base_url: str = Field(
        examples=["http://127.0.0.1:8000/v1"],
        description="OpenAI-compatible endpoint, up to and with /v1.",
    )
    models: JudgeModels = Field(description="Model of each purpose.")
    style: JudgeStyle = Field(JudgeStyle.WEBGYM, description="How an episode is judged.")
    api_key_env: str | None = Field(None, description="Environment variable with the key.")
    temperature: float | None = Field(0.0, ge=0, le=2, description="Sampling temperature; null: not sent.")
    max_tokens: int = Field(800, ge=16, le=32_768, description="Length of a reply; thinking models need more.")
    length_parameter: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="The name that the length is sent under."
    )
    json_mode: bool = Field(False, description="Request response_format json_object, if the endpoint knows it.")
    structured: Structured = Field(Structured.NONE, description="Send the reply's schema, if the endpoint knows it.")
    timeout: float = Field(120.0, gt=0, le=3600, description="Seconds for one request.")
    deadline: float = Field(900.0, gt=0, le=86_400, description="Seconds for one episode, with retries.")
    retries: int = Field(3, ge=0, le=20, description="Retries after 429, 5xx or bad JSON.")
    backoff: float = Field(1.0, gt=0, le=60, description="Seconds before the first retry; doubles.")
    max_backoff: float = Field(60.0, gt=0, le=600, description="Longest wait before a retry.")
    concurrency: int = Field(16, ge=1, le=1024, description="Concurrent requests over all episodes.")
    budget_requests: int | None = Field(None, ge=0, description="Requests of a whole run; null: no limit.")
    budget_tokens: int | None = Field(None, ge=0, description="Tokens of a whole run; null: no limit.")
    prompt_price: float = Field(0.0, ge=0, le=1e6, description="Dollars per million prompt tokens.")
    answer_price: float = Field(0.0, ge=0, le=1e6, description="Dollars per million answer tokens.")
    votes: int = Field(1, ge=1, le=15, description="Answers to each deciding question (odd).")
    seed: int | None = Field(
        42, ge=0, lt=2**31, description="Seed of requests and sampled screenshots; null: not sent."
    )
    early_exit: bool = Field(False, description="Stop at the first failed fact: no partial score.")
    max_images: int = Field(48, ge=1, le=500, description="Screenshots in one question, the last ones.")
    blocking_images: int = Field(20, ge=1, le=500, description="Screenshots of the blocking question.")
    last_images: int = Field(1, ge=1, le=500, description="Screenshots of a webvoyager verdict.")
    page_text_chars: int = Field(4000, ge=0, le=200_000, description="Page text per screenshot; 0: none.")
    cache: Path | None = Field(None, description="Folder of earlier answers; null: ask every question.")

    @field_validator("base_url")
    @classmethod
    def _check_address(cls, value: str) -> str:
        return endpoint_address(value, "api_key_env")

    @model_validator(mode="after")
    def _check_one_format(self) -> Self:
        if self.json_mode and self.structured is not Structured.NONE:
            raise ValueError("json_mode: structured asks for more than it does; leave one of them out")
        return self

    @model_validator(mode="after")
    def _check_odd(self) -> Self:
        if self.votes % 2 == 0:
            raise ValueError(f"votes: {self.votes} is even; an odd number has a majority")
        return self

    @property
    def limits(self) -> SpendingLimits:
        """Budget of requests and tokens."""
        return SpendingLimits(self.budget_requests, self.budget_tokens)

    def dollars(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price of these tokens."""
        return (prompt_tokens * self.prompt_price + completion_tokens * self.answer_price) / 1e6

    def api_key(self) -> str | None:
        """Read the key from its variable. Only the connection stores it.

        Raises:
            ConfigError: The variable is not set or cannot be sent in a header.
        """
        return None if self.api_key_env is None else endpoint_key("api_key_env", self.api_key_env)


def endpoint_address(value: str, key_setting: str) -> str:
    """Check an endpoint's address and return it without the slash at its end.

    Args:
        key_setting: Setting that names the variable of the key; for the error message.

    Raises:
        ValueError: It is no http(s) address, or has a user, password, query or fragment.
    """
    parts = urlsplit(value)  # raises ValueError for a bad port or bracket
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{value!r} is no http(s) address")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(f"no user, password, query or fragment here: a key goes into the variable {key_setting}")
    _ = parts.port
    return value.rstrip("/")


def endpoint_key(setting: str, variable: str) -> str:
    """Return the key in an environment variable, which the configuration names in ``setting``.

    Raises:
        ConfigError: The variable is not set or cannot be sent in a header.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(f"{setting}: the variable {variable} is not set; export it or leave it out")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{setting}: the value of {variable} has characters that no header may have")
    return key
