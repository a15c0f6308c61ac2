"""Tasks on the shop of the recipe ``oscar``, each with a plan that solves it.

They are a function of the built shop's database. ``python -m envs.bundled.oscar_tasks FILE`` writes
them; ``datasets/tasks/oscar.jsonl`` holds them.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.bundled.generate.moves import Fill, Follow, Plan, Push, Say
from envs.bundled.site_tasks import answer, rows, shown, site_task, write_tasks
from envs.types import WebTask

SITE = "oscar"
START = "/catalogue/"
DATABASE = "shop.sqlite"
"""File of the shop's database in the state folder."""
CATEGORIES = ("Kitchen", "Toys", "Office", "Garden", "Tools")
"""Categories whose products are counted."""
NAMES = ("Orchard", "Winter", "Fielding", "Sorrel", "Lindqvist")
"""Last names that the customer takes."""
_ITEMS = """
    SELECT p.id, p.title, p.slug, p.upc, s.price, s.num_in_stock
    FROM catalogue_product p JOIN partner_stockrecord s ON s.product_id = p.id ORDER BY p.id
"""
_BASKET = "SELECT p.upc, l.quantity FROM basket_line l JOIN catalogue_product p ON p.id = l.product_id"
_WISHES = "SELECT p.upc FROM wishlists_line l JOIN catalogue_product p ON p.id = l.product_id"
_ALERTS = "SELECT p.upc FROM customer_productalert a JOIN catalogue_product p ON p.id = a.product_id"
_NAMES = "SELECT first_name, last_name FROM auth_user WHERE username = 'ann'"
_ORDERS = "SELECT number FROM order_order"


@dataclass(frozen=True, slots=True)
class ShopItem:
    """One product of the shop."""

    id: int
    title: str
    slug: str
    upc: str
    price: float
    stock: int

    @property
    def path(self) -> str:
        """Path of its page."""
        return f"/catalogue/{self.slug}_{self.id}/"

    @property
    def way(self) -> Plan:
        """Moves that lead to its page."""
        return Fill("Search", self.title), Push("Search"), Follow(self.title)


def oscar_tasks(database: Path) -> Iterator[tuple[WebTask, Plan]]:
    """Yield the tasks and their plans, in order of their kinds."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as shop:
        items = [ShopItem(*row) for row in shop.execute(_ITEMS)]
        counted = dict(
            shop.execute(
                "SELECT c.name, COUNT(*) FROM catalogue_category c "
                "JOIN catalogue_productcategory m ON m.category_id = c.id GROUP BY c.name"
            )
        )
    available = iter([item for item in items if item.stock])
    for _ in range(10):
        item = next(available)
        page = shown(f'#add_to_basket_form[action="/basket/add/{item.id}/"]')
        yield _task("open", item.id, f"Open the page of the {item.title}.", _url(item.path), page=page), item.way
    for _ in range(10):
        item = next(available)
        wanted = answer(f"{item.price:.2f}", "number")
        plan = (*item.way, Say(f"£{item.price:.2f}"))
        yield _task("price", item.id, f"What does the {item.title} cost, in pounds?", wanted), plan
    for _ in range(12):
        item = next(available)
        basket = rows(_BASKET, (item.upc, 1))
        plan = (*item.way, Push("Add to basket"), Push("View basket"))
        text = f"Put one {item.title} into the basket. End at the page of the basket."
        page = shown(f'#basket_formset a[href="{item.path}"]')
        yield _task("basket", item.id, text, basket, page=page, basket=True), plan
    for _ in range(10):
        item = next(available)
        plan = (*item.way, Push("Add to wish list"))
        yield _task("wish", item.id, f"Put the {item.title} on your wish list.", rows(_WISHES, (item.upc,))), plan
    for item in [item for item in items if not item.stock][:8]:
        text = f"Ask for an e-mail when the {item.title} is back in stock."
        yield _task("alert", item.id, text, rows(_ALERTS, (item.upc,))), (*item.way, Push("Notify me"))
    for number, name in enumerate(NAMES):
        plan = (Follow("Account"), Follow("Edit profile"), Fill("Last name", name), Push("Save"))
        text = f"Change your last name to {name}. End at the page of your profile."
        page = {"type": "text", "text": f"Ann {name}"}
        yield _task("name", number, text, rows(_NAMES, ("Ann", name)), page=page), plan
    for number, name in enumerate(CATEGORIES):
        wanted = answer(str(counted[name]), "number")
        plan = (Follow(name), Say(str(counted[name])))
        yield _task("count", number, f"How many products are in the category {name}?", wanted), plan


def _url(path: str) -> Mapping[str, Any]:
    return {"type": "url", "url": path}


def _task(
    kind: str,
    number: int,
    text: str,
    fact: Mapping[str, Any],
    *,
    page: Mapping[str, Any] | None = None,
    basket: bool = False,
) -> WebTask:
    gates = [{"id": "no-order", **rows(_ORDERS)}, *([] if basket else [{"id": "basket-untouched", **rows(_BASKET)}])]
    difficulty = 2 if kind in ("open", "price", "count") else 3
    return site_task(SITE, kind, number, text, fact, path=START, gates=gates, page=page, difficulty=difficulty)


if __name__ == "__main__":
    write_tasks(SITE, DATABASE, oscar_tasks, sys.argv[1])
