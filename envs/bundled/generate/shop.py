"""Templates over the shop: look up, show, fill the basket, order, cancel.

Each function draws one request: its wordings, what is true at the end, and the moves to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from envs.bundled.generate import drafts
from envs.bundled.generate.drafts import (
    TaskDraft,
    Template,
    answer_group,
    draft,
    field_fact,
    group,
    join_words,
    line_fact,
    no_rows_fact,
    page_group,
    row_fact,
    url_fact,
)
from envs.bundled.generate.moves import Choose, Fill, Follow, Move, Plan, Push, Say, Tick
from envs.bundled.sites.shop import DELIVERIES, Product, ShopWorld
from envs.bundled.sites.shop.world import FIRST_ORDER, ORDERS
from envs.bundled.sites.words import CITIES, FIRST_NAMES, LAST_NAMES, STREETS
from envs.types import Fact, FactGroup
from envs.types.rubrics import TextFact

EMPTY_BASKET = no_rows_fact("basket-untouched", "SELECT product FROM basket", "The basket is still empty")
CHANGED_ORDERS = "SELECT id FROM (SELECT * FROM orders EXCEPT SELECT * FROM before_orders)"
OLD_ORDERS = no_rows_fact("orders-untouched", CHANGED_ORDERS, "No order was made or changed")
look = partial(draft, gates=(EMPTY_BASKET, OLD_ORDERS))
"""Makes a draft of a request that changes nothing."""

NEW = FIRST_ORDER + ORDERS
"""Number of the first order that an episode makes."""
MAX_OF_ONE = 6

CRITERIA: dict[str, tuple[str, Callable[[Product], float]]] = {
    "cheapest": ("Price: low to high", lambda product: product.price),
    "most expensive": ("Price: high to low", lambda product: -product.price),
    "best-rated": ("Rating: best first", lambda product: -product.rating),
}
"""Criterion: the sort order that shows it, and a key to minimize."""
ASKED: dict[str, tuple[str, Callable[[Product], float]]] = {
    "weight": ("weight in grams", lambda product: product.weight),
    "price": ("price in dollars", lambda product: product.price / 100),
    "rating": ("rating", lambda product: product.rating),
}

Items = Sequence[tuple[Product, int]]
"""Products and how many of each."""


def _find(product: Product, source: random.Random) -> Plan:
    return drafts.find(product.name, product.category, "Search products", source)


def _open(world: ShopWorld, source: random.Random) -> TaskDraft:
    product = source.choice(world.products)
    return look(
        f"Open the page of the {product.name}.",
        f"Go to the product page of the {product.name}.",
        f"Find the {product.name} in the shop and open it.",
        groups=page_group(f"The page of the {product.name} is open", f"/product/{product.id}", f"the {product.name}"),
        plan=_find(product, source),
    )


def _ask(world: ShopWorld, source: random.Random) -> TaskDraft:
    product = source.choice(world.products)
    name, (words, value) = source.choice([*ASKED.items()])
    wanted = value(product)
    return look(
        f"What is the {words} of the {product.name}? Answer with the number.",
        f"Look up the {product.name} and tell its {words}, as a number.",
        f"Tell me the {words} of the {product.name} (only the number).",
        groups=answer_group(f"The {name} of the {product.name} is told", wanted, f"The {words} is {wanted:g}"),
        plan=(*_find(product, source), Say(f"{wanted:g}")),
    )


def _extreme(world: ShopWorld, source: random.Random) -> TaskDraft:
    category, criterion, best, sort = _best(world, source)
    return look(
        f"Which product in {category} is the {criterion}? Answer with its name only.",
        f"Name the {criterion} product of the category {category}. Answer with the name alone.",
        f"Find out which {category} product is the {criterion} and answer with its name.",
        groups=answer_group(f"The {criterion} product in {category} is named", best.name, f"It is the {best.name}"),
        plan=(Follow(category), Choose("Sort by", sort), Push("Apply"), Say(best.name)),
    )


def _extreme_page(world: ShopWorld, source: random.Random) -> TaskDraft:
    category, criterion, best, sort = _best(world, source)
    what = source.choice(["colour", "material"])
    value = best.colour if what == "colour" else best.material
    page = f"The page of the {criterion} product in {category} is open"
    return look(
        f"Open the page of the {criterion} product in {category} and answer with its {what} (one word).",
        f"In {category}, go to the page of the product that is the {criterion}; then tell its {what} in one word.",
        groups=(
            page_group(page, f"/product/{best.id}", f"the {best.name}"),
            answer_group(f"Its {what} is told", value, f"The {what} is {value}"),
        ),
        plan=(Follow(category), Choose("Sort by", sort), Push("Apply"), Follow(best.name), Say(value)),
    )


def _best(world: ShopWorld, source: random.Random) -> tuple[str, str, Product, str]:
    category = source.choice(world.categories)
    criterion, (sort, key) = source.choice([*CRITERIA.items()])
    return category, criterion, min(world.of_category(category), key=key), sort


def _show(world: ShopWorld, source: random.Random) -> TaskDraft:
    category = source.choice(world.categories)
    sort = source.choice([sort for sort, _ in CRITERIA.values()])
    brand = source.choice(sorted({product.brand for product in world.of_category(category)}))
    lines = line_fact("brand", f"Brand: {brand}"), line_fact("sort", f"Sorted by: {sort}")
    return look(
        f'Show the products of {brand} in {category}, sorted by "{sort}".',
        f'In the category {category}, show only {brand} products and sort them by "{sort}".',
        groups=(
            group(
                "list", f"The products of {category} are shown", url_fact(f"/category/{category}", category, "prefix")
            ),
            group("filter", "They are filtered and sorted", *lines),
        ),
        plan=(Follow(category), Choose("Brand", brand), Choose("Sort by", sort), Push("Apply")),
    )


def _search(world: ShopWorld, source: random.Random) -> TaskDraft:
    word = source.choice(world.products).name.split()[-1]
    there = url_fact(f"/search?q={word}", f"the results for {word}")
    shown = TextFact(id="text", text=f"Products with “{word}”", description="The page says what was searched for")
    return look(
        f'Search the shop for "{word}".',
        f'Use the search box to find products with "{word}" in their name.',
        groups=group("search", f"The shop was searched for {word}", there, shown),
        plan=(Fill("Search products", word), Push("Search")),
    )


def _order_page(world: ShopWorld, source: random.Random) -> TaskDraft:
    order = source.choice(world.orders)
    product, quantity = source.choice(order.lines)
    name = world.name_of(product)
    return look(
        f"Open the order with the {name} and answer how many of it were ordered (only the number).",
        f"How many of the {name} did I order? Open that order and answer with the number.",
        groups=(
            page_group(f"The order with the {name} is open", f"/orders/{order.id}", f"order {order.id}"),
            answer_group("The quantity is told", quantity, f"{quantity} were ordered"),
        ),
        plan=(Follow("Orders"), Follow(f"Order {order.id}"), Say(str(quantity))),
    )


def _cancel(world: ShopWorld, source: random.Random) -> TaskDraft:
    order = source.choice([order for order in world.orders if order.status == "processing"])
    thing = world.name_of(source.choice(order.lines)[0])
    status = f"SELECT status FROM orders WHERE id = {order.id}"
    cancelled = row_fact("status", status, "cancelled", "It is cancelled")
    return draft(
        f"Cancel the order with the {thing}.",
        f"I do not want the {thing} any more: cancel the order that it is in.",
        groups=group("order", f"The order with the {thing} is cancelled", cancelled),
        plan=(Follow("Orders"), Follow(f"Order {order.id}"), Push("Cancel order")),
        gates=(EMPTY_BASKET, _no_other_order(order.id)),
    )


def _into_basket(count: int, world: ShopWorld, source: random.Random) -> TaskDraft:
    items, things = _items(world, source, count)
    return draft(
        f"Put {things} into the basket.",
        f"Add {things} to the basket, and nothing else.",
        f"I need {things}. Put this into my basket, without ordering it.",
        groups=_item_groups(items, "basket WHERE 1", "in the basket"),
        plan=_buy(items, source),
        gates=(_nothing_else(items, "basket WHERE 1"), OLD_ORDERS),
    )


def _order(count: int, gift: bool, world: ShopWorld, source: random.Random) -> TaskDraft:
    items, things = _items(world, source, count)
    name = f"{source.choice(FIRST_NAMES)} {source.choice(LAST_NAMES)}"
    street = f"{source.choice(STREETS)} {source.randint(1, 99)}"
    city, delivery = source.choice(CITIES), source.choice(DELIVERIES)
    wrapped = ", with gift wrapping" if gift else ""
    ordered = _item_groups(items, f"order_lines WHERE order_id = {NEW}", "ordered")
    address = (
        _of_order("name", name, f"It is for {name}"),
        _of_order("street", street, f"It goes to {street}"),
        _of_order("city", city, f"It goes to {city}"),
    )
    sent = [_of_order("delivery", delivery, f"Delivery: {delivery}")]
    if gift:
        sent.append(_of_order("gift", 1, "It is wrapped as a gift"))
    # An order has an address and a delivery only if something is ordered.
    after = [item.name for item in ordered]
    return draft(
        f"Order {things} for {name}, {street}, {city}, delivery {delivery}{wrapped}.",
        f"Buy {things}. Send it to {name}, {street} in {city}; choose {delivery} as the delivery{wrapped}.",
        f"Place an order of {things}{wrapped}. Name: {name}. Street and number: {street}. City: {city}. Delivery: {delivery}.",
        groups=(
            *ordered,
            group("address", f"The order goes to {name}, {street}, {city}", *address, after=after),
            group("delivery", f"It is delivered: {delivery}", *sent, after=after),
        ),
        plan=(
            *_buy(items, source),
            Follow("Go to checkout"),
            Fill("Full name", name),
            Fill("Street and number", street),
            Fill("City", city),
            Choose("Delivery", delivery),
            *([Tick("Gift wrapping")] if gift else []),
            Push("Place order"),
        ),
        gates=(_nothing_else(items, f"order_lines WHERE order_id = {NEW}"), _no_other_order(NEW)),
    )


def _items(world: ShopWorld, source: random.Random, count: int) -> tuple[Items, str]:
    """Draw products with quantities, and their text: ``3 of the Oakline Kettle and one Lamp``."""
    items = [(product, source.randint(1, MAX_OF_ONE)) for product in source.sample(world.products, count)]
    return items, join_words(_some(*item) for item in items)


def _some(product: Product, quantity: int) -> str:
    return f"{quantity} of the {product.name}" if quantity > 1 else f"one {product.name}"


def _buy(items: Items, source: random.Random) -> Plan:
    plan: list[Move] = []
    for product, quantity in items:
        plan += _find(product, source)
        if quantity > 1:
            plan.append(Fill("Quantity", str(quantity)))
        plan.append(Push("Add to basket"))
    return tuple(plan)


def _item_groups(items: Items, rows: str, place: str) -> list[FactGroup]:
    """Check for each item that it is there, in the right quantity."""
    groups = []
    for number, (product, quantity) in enumerate(items, 1):
        where = f"FROM {rows} AND product = {product.id}"
        there = row_fact(f"product-{number}", f"SELECT product {where}", product.id, f"The {product.name} is {place}")
        many = row_fact(f"quantity-{number}", f"SELECT quantity {where}", quantity, f"{quantity} of it are {place}")
        groups.append(group(f"item-{number}", f"{_some(product, quantity)} is {place}", there, many))
    return groups


def _nothing_else(items: Items, rows: str) -> Fact:
    wanted = ", ".join(str(product.id) for product, _ in items)
    query = f"SELECT product FROM {rows} AND product NOT IN ({wanted})"
    return no_rows_fact("nothing-else", query, "There is nothing else")


def _no_other_order(number: int) -> Fact:
    return no_rows_fact("other-orders", f"{CHANGED_ORDERS} WHERE id <> {number}", "No other order was made or changed")


def _of_order(field: str, value: str | int, description: str) -> Fact:
    return field_fact(f"/api/orders/{NEW}", field, value, description)


TEMPLATES = (
    Template("shop-open", 1, _open),
    Template("shop-ask", 1, _ask),
    Template("shop-extreme", 1, _extreme),
    Template("shop-search", 2, _search),
    Template("shop-order-page", 2, _order_page),
    Template("shop-extreme-page", 2, _extreme_page),
    Template("shop-show", 3, _show),
    Template("shop-cancel", 1, _cancel),
    Template("shop-basket-1", 2, partial(_into_basket, 1)),
    Template("shop-basket-2", 4, partial(_into_basket, 2)),
    Template("shop-basket-3", 6, partial(_into_basket, 3)),
    Template("shop-order-1", 6, partial(_order, 1, False)),
    Template("shop-order-gift", 7, partial(_order, 1, True)),
    Template("shop-order-2", 8, partial(_order, 2, False)),
)
