"""WebArena's shop checks over Magento's REST API: newest order, newest review.

The shop is asked as its administrator, whose token is asked for once, and again when the shop does
not take it any more (Magento's lasts four hours). A name and password that the shop refused are not
sent again until their file says something else: Magento locks an account after a few wrong ones.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from envs.egress import AllowList
from envs.rewards.webarena.helpers import Helper
from envs.sites.site_http import Server, asked, read_json
from envs.types import SiteError
from envs.types.paths import AnyPath

SITE = "shopping"
"""Name of the shop, as placeholders and ``tasks.addresses`` have it."""
ADMIN = "shopping_site_admin"
"""The benchmark's name of the account that asks; the key of ``tasks.logins``."""
NEEDS_ADDRESS = f"the shop's address: set tasks.addresses.{SITE}=http://…"
NEEDS_LOGIN = f'the shop\'s administrator: set tasks.logins.{ADMIN} to a file with {{"username": …, "password": …}}'

NAMES = (
    "shopping_get_latest_order_url",
    "shopping_get_sku_latest_review_author",
    "shopping_get_sku_latest_review_rating",
    "shopping_get_sku_latest_review_text",
)
"""The benchmark's, of the questions that `Shop` answers."""

DEADLINE = 15.0
"""Seconds for one question, its log-in included: a shop whose caches are cold takes several. A task
of the benchmark asks twice, and the look at its pages has the 60 of a step."""
MAX_FILE = 100_000
"""Bytes of an account's file."""

_TOKEN = re.compile(r"[!-~]{1,8000}")
"""A token that a header can hold."""
_TOKEN_PATH = "/rest/default/V1/integration/admin/token"
_NEWEST_ORDER = (
    "/rest/V1/orders?searchCriteria[sortOrders][0][field]=created_at&searchCriteria[sortOrders][0][direction]=DESC"
    "&searchCriteria[pageSize]=1"
)


@dataclass(frozen=True)
class Account:
    """Account of the requests. It enters no error and no record."""

    username: str = field(repr=False)
    password: str = field(repr=False)


def read_account(path: AnyPath) -> Account:
    """The account of a file ``{"username": …, "password": …}``.

    Raises:
        SiteError: no such file, or not of this form. The message has none of its values.
    """
    try:
        with Path(path).open("rb") as file:
            given = orjson.loads(file.read(MAX_FILE))
    except OSError as error:
        raise SiteError(f"tasks.logins.{ADMIN}: {path} cannot be read: {error.strerror}") from None
    except orjson.JSONDecodeError:
        given = None
    match given:
        case {"username": str(username), "password": str(password)} if username and password:
            return Account(username, password)
    raise SiteError(f"tasks.logins.{ADMIN}: {path} is no account; expected an object with username and password")


class Shop:
    """The benchmark's shop.

    Its questions may be asked by many episodes at once, on one event loop.

    Example::

        shop = Shop("http://127.0.0.1:7770", "/etc/rollwright/shop-admin.json")
        await shop.review_author("B00J8RZL7I")      # "Emma Lopez", or "" without reviews
    """

    def __init__(self, address: str, account: str, *, deadline: float = DEADLINE) -> None:
        """
        Args:
            address: ``tasks.addresses.shopping``; empty if it is not known, which every question
                then says.
            account: Path of the file with the administrator's account; empty if there is none,
                which every question then says.
        """
        parts = urlsplit(address)
        origin = f"{parts.scheme}://{parts.netloc}" if address else ""
        self._address = address.rstrip("/")
        self._below = parts.path.rstrip("/")
        self._server = Server(origin, AllowList.of(origin) if origin else None, deadline)
        self._account = account
        self._token = ""
        self._refused: Account | None = None
        self._entering = asyncio.Lock()

    @property
    def helpers(self) -> Mapping[str, Helper]:
        """Helpers by the benchmark's names."""
        return dict(zip(NAMES, (self.order_url, self.review_author, self.review_rating, self.review_text), strict=True))

    async def order_url(self) -> str:
        """Address of the page of the newest order, of whichever customer.

        Raises:
            SiteError: the shop cannot be asked, or has no order at all, in which case the benchmark
                fails too.
        """
        answer = await self._ask(_NEWEST_ORDER)
        what = asked(_NEWEST_ORDER)
        match answer:
            case {"items": []}:
                raise SiteError(
                    f"{what}: the shop has no orders; the benchmark's own has, so see tasks.addresses.{SITE}"
                )
            case {"items": [{"increment_id": str() | int() as number}, *_]} if re.fullmatch(
                r"[0-9]{1,18}", str(number)
            ):
                return f"{self._address}/sales/order/view/order_id/{int(number)}/"
        raise SiteError(f"{what}: expected items with an increment_id of digits")

    async def review_author(self, sku: str) -> str:
        """Name that the newest review of a product was written under; empty without reviews.

        Raises:
            SiteError: the shop cannot be asked.
        """
        return await self._newest(sku, itemgetter("nickname"), "reviews with a nickname")

    async def review_rating(self, sku: str) -> str:
        """Rating of the newest review of a product in percent (``80`` for four stars); empty
        without reviews.

        Raises:
            SiteError: the shop cannot be asked, or reviews are rated by something else than one
                ``Rating``.
        """
        return await self._newest(sku, _percent, "reviews whose first rating is named Rating, with a percent")

    async def review_text(self, sku: str) -> str:
        """Text of the newest review of a product; empty without reviews (VisualWebArena).

        Raises:
            SiteError: the shop cannot be asked.
        """
        return await self._newest(sku, itemgetter("detail"), "reviews with a detail")

    async def _newest(self, sku: str, read: Callable[[Any], Any], expected: str) -> str:
        """Read a text of the newest review; empty without reviews."""
        if not isinstance(sku, str) or not sku:
            raise SiteError("the sku of a product is asked for; expected a text")
        path = f"/rest/V1/products/{quote(sku, safe='')}/reviews"
        answer = await self._ask(path)
        if not isinstance(answer, list):
            raise SiteError(f"{asked(path)}: expected a list of reviews")
        if not answer:
            return ""
        try:
            text = read(answer[-1])
        except (KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise SiteError(f"{asked(path)}: expected {expected}")
        return text

    async def _ask(self, path: str) -> Any:
        """The JSON at a path of the shop, as its administrator."""
        if not self._address:
            raise SiteError(f"{asked(path)} needs {NEEDS_ADDRESS}")
        try:
            async with asyncio.timeout(self._server.deadline):
                status, body = await self._answer(path)
        except TimeoutError as error:
            within = f"within {self._server.deadline:g} s, the log-in included"
            raise SiteError(f"{asked(path)}: no answer {within}") from error
        if status == 401:
            raise SiteError(f"{asked(path)}: answered 401; may the account of tasks.logins.{ADMIN} read this?")
        if status != 200:
            raise SiteError(f"{asked(path)}: answered {status}; expected 200")
        return read_json(body, asked(path))

    async def _answer(self, path: str) -> tuple[int, bytes]:
        """Status and body; of a second question with a new token where the first one's was not
        taken."""
        for _ in range(2):
            token = await self._entered()
            headers = {"authorization": f"Bearer {token}"}
            status, body = await self._server.ask(self._below + path, headers=headers)
            if status != 401:
                break
            if self._token == token:  # otherwise another episode has got a new one meanwhile
                self._token = ""
        return status, body

    async def _entered(self) -> str:
        """The administrator's token."""
        async with self._entering:
            if not self._token:
                self._token = await self._enter()
            return self._token

    async def _enter(self) -> str:
        if not self._account:
            raise SiteError(f"needs {NEEDS_LOGIN}")
        account = await asyncio.to_thread(read_account, Path(self._account))
        refused = f"the shop refuses the account of tasks.logins.{ADMIN}; correct {self._account}"
        if account == self._refused:
            raise SiteError(f"{refused} (it is not sent again as it is)")
        sent = orjson.dumps({"username": account.username, "password": account.password})
        status, body = await self._server.ask(self._below + _TOKEN_PATH, sent=sent)
        if status == 401:
            self._refused = account
            raise SiteError(f"POST {_TOKEN_PATH}: answered 401: {refused}")
        if status != 200:
            raise SiteError(f"POST {_TOKEN_PATH}: answered {status}; expected 200")
        try:
            token = orjson.loads(body)
        except orjson.JSONDecodeError:
            token = None
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            # Without the answer, and without a cause that has it: it may be a token in another
            # form.
            raise SiteError(f"POST {_TOKEN_PATH}: the answer is no token; expected it as a JSON text")
        return token


def _percent(review: Any) -> str | None:
    match review:
        case {"ratings": [{"rating_name": "Rating", "percent": int(percent)}, *_]} if type(percent) is int:
            return str(percent)
    return None
