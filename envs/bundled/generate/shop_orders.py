"""Shop templates that change state: basket, new orders, cancelled orders."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from envs.bundled.generate.drafts import TaskDraft, Template, group, join_words, rows_fact
from envs.bundled.generate.moves import Choose, Fill, Follow, Move, Plan, Push, Tick
from envs.bundled.generate.shop import EMPTY_BASKET, OLD_ORDERS, to_product
from envs.bundled.sites.shop import DELIVERIES, Product, ShopWorld
from envs.bundled.sites.shop.world import FIRST_ORDER, ORDERS
from envs.bundled.sites.words import CITIES, FIRST_NAMES, LAST_NAMES, STREETS
from envs.types import Fact, FactGroup
from envs.types.rubrics import HttpFact

NEW = FIRST_ORDER + ORDERS
"""Number of the first order that an episode makes."""
MAX_OF_ONE = 6

Items = Sequence[tuple[Product, int]]


def _into_basket(count: int, world: ShopWorld, source: random.Random) -> TaskDraft:
    items = _items(world, source, count)
    things = join_words(_some(*item) for item in items)
    return TaskDraft(
        wordings=(
            f"Put {things} into the basket.",
            f"Add {things} to the basket, and nothing else.",
            f"I need {things}. Put this into my basket, without ordering it.",
        ),
        groups=_lines(items, "basket", "1", "in the basket"),
        plan=_buy(items, source),
        gates=(_nothing_else(items, "basket", "1"), OLD_ORDERS),
    )


def _order(count: int, gift: bool, world: ShopWorld, source: random.Random) -> TaskDraft:
    items = _items(world, source, count)
    name = f"{source.choice(FIRST_NAMES)} {source.choice(LAST_NAMES)}"
    street = f"{source.choice(STREETS)} {source.randint(1, 99)}"
    city, delivery = source.choice(CITIES), source.choice(DELIVERIES)
    things = join_words(_some(*item) for item in items)
    wrapped = ", with gift wrapping" if gift else ""
    ours = f"order_id = {NEW}"
    lines = _lines(items, "order_lines", ours, "ordered")
    return TaskDraft(
        wordings=(
            f"Order {things} for {name}, {street}, {city}, delivery {delivery}{wrapped}.",
            f"Buy {things}. Send it to {name}, {street} in {city}; choose {delivery} as the delivery{wrapped}.",
            f"Place an order of {things}{wrapped}. Name: {name}. Street and number: {street}. City: {city}. Delivery: {delivery}.",
        ),
        groups=(*lines, *_address(name, street, city, delivery, gift, [line.name for line in lines])),
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
        gates=(_nothing_else(items, "order_lines", ours), _no_other_order(NEW)),
    )


def _cancel(world: ShopWorld, source: random.Random) -> TaskDraft:
    order = source.choice([order for order in world.orders if order.status == "processing"])
    thing = world.name_of(source.choice(order.lines)[0])
    status = rows_fact(
        "status", f"SELECT status FROM orders WHERE id = {order.id}", [("cancelled",)], "It is cancelled"
    )
    return TaskDraft(
        wordings=(
            f"Cancel the order with the {thing}.",
            f"I do not want the {thing} any more: cancel the order that it is in.",
        ),
        groups=(group("order", f"The order with the {thing} is cancelled", status),),
        plan=(Follow("Orders"), Follow(f"Order {order.id}"), Push("Cancel order")),
        gates=(EMPTY_BASKET, _no_other_order(order.id)),
    )


def _items(world: ShopWorld, source: random.Random, count: int) -> Items:
    return [(product, source.randint(1, MAX_OF_ONE)) for product in source.sample(world.products, count)]


def _some(product: Product, quantity: int) -> str:
    """Format as ``3 of the Oakline Kettle``."""
    return f"{quantity} of the {product.name}" if quantity > 1 else f"one {product.name}"


def _buy(items: Items, source: random.Random) -> Plan:
    plan: list[Move] = []
    for product, quantity in items:
        plan += to_product(product, source)
        if quantity > 1:
            plan.append(Fill("Quantity", str(quantity)))
        plan.append(Push("Add to basket"))
    return tuple(plan)


def _lines(items: Items, table: str, where: str, place: str) -> tuple[FactGroup, ...]:
    """Check for each item that it is there, in the right quantity."""
    return tuple(
        group(
            f"item-{number}",
            f"{_some(product, quantity)} is {place}",
            rows_fact(
                f"product-{number}",
                f"SELECT product FROM {table} WHERE {where} AND product = {product.id}",
                [(product.id,)],
                f"The {product.name} is {place}",
            ),
            rows_fact(
                f"quantity-{number}",
                f"SELECT quantity FROM {table} WHERE {where} AND product = {product.id}",
                [(quantity,)],
                f"{quantity} of it are {place}",
            ),
        )
        for number, (product, quantity) in enumerate(items, 1)
    )


def _nothing_else(items: Items, table: str, where: str) -> Fact:
    wanted = ", ".join(str(product.id) for product, _ in items)
    query = f"SELECT product FROM {table} WHERE {where} AND product NOT IN ({wanted})"
    return rows_fact("nothing-else", query, (), "There is nothing else")


def _no_other_order(number: int) -> Fact:
    query = f"SELECT id FROM (SELECT * FROM orders EXCEPT SELECT * FROM before_orders) WHERE id <> {number}"
    return rows_fact("other-orders", query, (), "No other order was made or changed")


def _address(
    name: str, street: str, city: str, delivery: str, gift: bool, items: Sequence[str]
) -> tuple[FactGroup, FactGroup]:
    """Check address and delivery, which an order has only if something is ordered."""

    def expected(field: str, value: str | int, description: str) -> HttpFact:
        return HttpFact(id=field, path=f"/api/orders/{NEW}", at=(field,), value=value, description=description)

    wrapped = [expected("gift", 1, "It is wrapped as a gift")] if gift else []
    return (
        group(
            "address",
            f"The order goes to {name}, {street}, {city}",
            expected("name", name, f"It is for {name}"),
            expected("street", street, f"It goes to {street}"),
            expected("city", city, f"It goes to {city}"),
            after=items,
        ),
        group(
            "delivery",
            f"It is delivered: {delivery}",
            expected("delivery", delivery, f"Delivery: {delivery}"),
            *wrapped,
            after=items,
        ),
    )


CHANGING = (
    Template("shop-cancel", "shop", 1, _cancel),
    Template("shop-basket-1", "shop", 2, partial(_into_basket, 1)),
    Template("shop-basket-2", "shop", 4, partial(_into_basket, 2)),
    Template("shop-basket-3", "shop", 6, partial(_into_basket, 3)),
    Template("shop-order-1", "shop", 6, partial(_order, 1, False)),
    Template("shop-order-gift", "shop", 7, partial(_order, 1, True)),
    Template("shop-order-2", "shop", 8, partial(_order, 2, False)),
)
