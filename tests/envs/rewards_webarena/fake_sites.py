"""What WebArena's checks ask, on loopback: a shop with Magento's REST API and pages of orders, a
GitLab with a project's members."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.loopback import Quiet, serving

PASSWORD = "hidden-password"
ACCOUNT = {"username": "hidden-admin", "password": PASSWORD}


def review(nickname: str, percent: int = 80, name: str = "Rating") -> dict[str, Any]:
    """A review as the API gives it."""
    rating = {"vote_id": 1, "rating_id": 4, "rating_name": name, "percent": percent, "value": percent // 20}
    return {"id": 7, "title": "Fine", "detail": "It is", "nickname": nickname, "ratings": [rating], "review_status": 1}


@dataclass
class FakeShop:
    """What the shop knows, and what it was asked."""

    orders: list[dict[str, Any]] = field(
        default_factory=lambda: [
            {"increment_id": "000000190", "created_at": "2023-05-31 10:00:00"},
            {"increment_id": "000000191", "created_at": "2023-06-01 09:00:00"},
            {"increment_id": "000000005", "created_at": "2022-01-01 09:00:00"},
        ]
    )
    reviews: dict[str, list[Any]] = field(
        default_factory=lambda: {"B1": [review("Ann", 20), review("Emma & Co", 60)], "B/2 x": []}
    )
    instead: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Other answers by path."""
    slow: float = 0.0
    """Seconds before each answer."""
    asked: list[str] = field(default_factory=list)
    """Method and path of each request."""
    tokens: set[str] = field(default_factory=set)
    """Those that are taken now."""
    made: int = 0
    """Tokens so far."""

    @contextmanager
    def served(self) -> Iterator[str]:
        """Its origin; the shop is below ``/store``, its API as well."""
        shop = self

        class Handler(Quiet):
            def do_GET(self) -> None:
                shop.asked.append(f"GET {urlsplit(self.path).path}")
                status, body = shop.get(self.path, self.headers["Authorization"] or "")
                self.answer(status, body, "application/json" if "/rest/" in self.path else "text/html")

            def do_POST(self) -> None:
                shop.asked.append(f"POST {self.path}")
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.headers["Content-Type"] == "application/json"
                self.answer(*shop.post(self.path, sent), "application/json")

        with serving(Handler) as origin:
            yield f"{origin}/store"

    def post(self, path: str, sent: Any) -> tuple[int, str]:
        time.sleep(self.slow)
        if path in self.instead:
            return self.instead[path]
        assert path == "/store/rest/default/V1/integration/admin/token"
        if sent != ACCOUNT:
            return 401, '{"message": "The account sign-in was incorrect."}'
        self.made += 1
        token = f"hidden-token-{self.made}"
        self.tokens.add(token)
        return 200, json.dumps(token)

    def get(self, address: str, authorization: str) -> tuple[int, str]:
        time.sleep(self.slow)
        parts = urlsplit(address)
        path = parts.path.removeprefix("/store")
        if path in self.instead:
            return self.instead[path]
        if not path.startswith("/rest/"):
            number = path.removeprefix("/sales/order/view/order_id/").strip("/")
            found = f"<p class='items'>order {number}</p>" if number.isdigit() else "<title>Shop</title><p>Lamps</p>"
            return 200, found
        if authorization.removeprefix("Bearer ") not in self.tokens:
            return 401, '{"message": "The consumer isn\'t authorized to access %resources."}'
        if path == "/rest/V1/orders":
            return 200, json.dumps({"items": self._some_orders(parse_qs(parts.query)), "total_count": len(self.orders)})
        sku = unquote(path.removeprefix("/rest/V1/products/").removesuffix("/reviews"))
        return (200, json.dumps(self.reviews[sku])) if sku in self.reviews else (404, '{"message": "doesn\'t exist"}')

    def _some_orders(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        (column,), (way,), (size,) = (
            query[f"searchCriteria{name}"]
            for name in ("[sortOrders][0][field]", "[sortOrders][0][direction]", "[pageSize]")
        )
        return sorted(self.orders, key=lambda order: order[column], reverse=way == "DESC")[: int(size)]


def member(name: str, role: str) -> str:
    """A row of the table of members. Of some the role can be chosen: its cell has more than one
    span."""
    shown = f"<span>{role}</span>" if role != "Maintainer" else f"<button><span>{role}</span></button> <span>max</span>"
    return f"""<tr><td data-label="Account"><span class="gl-avatar-labeled-label">The {name}</span>
<span class="gl-avatar-labeled-sublabel">@{name}</span></td><td class="col-max-role">{shown}</td></tr>"""


MEMBERS = "<table>" + "".join(
    member(*each) for each in (("ada", "Maintainer"), ("kim2", "Owner"), ("kim", "Guest"), ("o'hara", "Developer"))
)


class FakeGitLab(Quiet):
    """``/plants/-/project_members`` for who has the cookie ``_gitlab_session=in``; others are sent
    to the log-in."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/users/sign_in":
            self.answer(200, "<title>Sign in</title><input name=login>")
        elif "_gitlab_session=in" not in (self.headers["Cookie"] or ""):
            self.answer(302, "", Location="/users/sign_in")
        elif path == "/plants/-/project_members":
            self.answer(200, MEMBERS)
        elif path == "/":
            self.answer(200, "<title>Projects</title><p>plants</p>")
        else:
            self.answer(404, "<p>Page not found</p>")
