"""Templates over the shop that look up and show. Those that change it are in `shop_orders`."""

from __future__ import annotations

import random
from collections.abc import Callable

from envs.bundled.generate.drafts import (
    TaskDraft,
    Template,
    answer_fact,
    group,
    line_fact,
    number_fact,
    rows_fact,
    url_fact,
)
from envs.bundled.generate.moves import Choose, Fill, Follow, Plan, Push, Say
from envs.bundled.sites.shop import Product, ShopWorld
from envs.types.rubrics import TextFact

EMPTY_BASKET = rows_fact("basket-untouched", "SELECT product FROM basket", (), "The basket is still empty")
OLD_ORDERS = rows_fact(
    "orders-untouched",
    "SELECT id FROM (SELECT * FROM orders EXCEPT SELECT * FROM before_orders)",
    (),
    "No order was made or changed",
)
UNTOUCHED = (EMPTY_BASKET, OLD_ORDERS)

Key = Callable[[Product], float]
CRITERIA: dict[str, tuple[str, Key]] = {
    "cheapest": ("Price: low to high", lambda product: product.price),
    "most expensive": ("Price: high to low", lambda product: -product.price),
    "best-rated": ("Rating: best first", lambda product: -product.rating),
}
"""Criterion: the sort order that shows it, and a key to minimize."""
ASKED: dict[str, tuple[str, Key]] = {
    "weight": ("weight in grams", lambda product: product.weight),
    "price": ("price in dollars", lambda product: product.price / 100),
    "rating": ("rating", lambda product: product.rating),
}


def to_product(product: Product, source: random.Random) -> Plan:
    """Return moves from any page to a product, through its category or the search."""
    if source.random() < 0.5:
        return (Follow(product.category), Follow(product.name))
    return (Fill("Search products", product.name), Push("Search"), Follow(product.name))


def _open(world: ShopWorld, source: random.Random) -> TaskDraft:
    product = source.choice(world.products)
    there = url_fact("at", f"/product/{product.id}", f"At the {product.name}")
    return TaskDraft(
        wordings=(
            f"Open the page of the {product.name}.",
            f"Go to the product page of the {product.name}.",
            f"Find the {product.name} in the shop and open it.",
        ),
        groups=(group("page", f"The page of the {product.name} is open", there),),
        plan=to_product(product, source),
        gates=UNTOUCHED,
    )


def _ask(world: ShopWorld, source: random.Random) -> TaskDraft:
    product = source.choice(world.products)
    name, (words, value) = source.choice([*ASKED.items()])
    wanted = value(product)
    expected = number_fact("answer", wanted, f"The {words} is {wanted:g}")
    return TaskDraft(
        wordings=(
            f"What is the {words} of the {product.name}? Answer with the number.",
            f"Look up the {product.name} and tell its {words}, as a number.",
            f"Tell me the {words} of the {product.name} (only the number).",
        ),
        groups=(group("answer", f"The {name} of the {product.name} is told", expected),),
        plan=(*to_product(product, source), Say(f"{wanted:g}")),
        gates=UNTOUCHED,
    )


def _extreme(world: ShopWorld, source: random.Random) -> TaskDraft:
    category, criterion, best, sort = _best(world, source)
    expected = answer_fact("answer", best.name, description=f"It is the {best.name}")
    return TaskDraft(
        wordings=(
            f"Which product in {category} is the {criterion}? Answer with its name only.",
            f"Name the {criterion} product of the category {category}. Answer with the name alone.",
            f"Find out which {category} product is the {criterion} and answer with its name.",
        ),
        groups=(group("answer", f"The {criterion} product in {category} is named", expected),),
        plan=(Follow(category), Choose("Sort by", sort), Push("Apply"), Say(best.name)),
        gates=UNTOUCHED,
    )


def _extreme_page(world: ShopWorld, source: random.Random) -> TaskDraft:
    category, criterion, best, sort = _best(world, source)
    what = source.choice(["colour", "material"])
    value = best.colour if what == "colour" else best.material
    there = url_fact("at", f"/product/{best.id}", f"At the {best.name}")
    return TaskDraft(
        wordings=(
            f"Open the page of the {criterion} product in {category} and answer with its {what} (one word).",
            f"In {category}, go to the page of the product that is the {criterion}; then tell its {what} in one word.",
        ),
        groups=(
            group("page", f"The page of the {criterion} product in {category} is open", there),
            group("answer", f"Its {what} is told", answer_fact("answer", value, description=f"The {what} is {value}")),
        ),
        plan=(Follow(category), Choose("Sort by", sort), Push("Apply"), Follow(best.name), Say(value)),
        gates=UNTOUCHED,
    )


def _best(world: ShopWorld, source: random.Random) -> tuple[str, str, Product, str]:
    category = source.choice(world.categories)
    criterion, (sort, key) = source.choice([*CRITERIA.items()])
    return category, criterion, min(world.of_category(category), key=key), sort


def _show(world: ShopWorld, source: random.Random) -> TaskDraft:
    category = source.choice(world.categories)
    sort = source.choice([sort for sort, _ in CRITERIA.values()])
    brand = source.choice(sorted({product.brand for product in world.of_category(category)}))
    there = url_fact("at", f"/category/{category}", f"At {category}", "prefix")
    return TaskDraft(
        wordings=(
            f'Show the products of {brand} in {category}, sorted by "{sort}".',
            f'In the category {category}, show only {brand} products and sort them by "{sort}".',
        ),
        groups=(
            group("list", f"The products of {category} are shown", there),
            group(
                "filter",
                "They are filtered and sorted",
                line_fact("brand", f"Brand: {brand}"),
                line_fact("sort", f"Sorted by: {sort}"),
            ),
        ),
        plan=(Follow(category), Choose("Brand", brand), Choose("Sort by", sort), Push("Apply")),
        gates=UNTOUCHED,
    )


def _search(world: ShopWorld, source: random.Random) -> TaskDraft:
    word = source.choice(world.products).name.split()[-1]
    there = url_fact("at", f"/search?q={word}", f"At the results for {word}")
    shown = TextFact(id="text", text=f"Products with “{word}”", description="The page says what was searched for")
    return TaskDraft(
        wordings=(
            f'Search the shop for "{word}".',
            f'Use the search box to find products with "{word}" in their name.',
        ),
        groups=(group("search", f"The shop was searched for {word}", there, shown),),
        plan=(Fill("Search products", word), Push("Search")),
        gates=UNTOUCHED,
    )


def _order_page(world: ShopWorld, source: random.Random) -> TaskDraft:
    order = source.choice(world.orders)
    product, quantity = source.choice(order.lines)
    name = world.name_of(product)
    return TaskDraft(
        wordings=(
            f"Open the order with the {name} and answer how many of it were ordered (only the number).",
            f"How many of the {name} did I order? Open that order and answer with the number.",
        ),
        groups=(
            group(
                "page",
                f"The order with the {name} is open",
                url_fact("at", f"/orders/{order.id}", f"At order {order.id}"),
            ),
            group("answer", "The quantity is told", number_fact("answer", quantity, f"{quantity} were ordered")),
        ),
        plan=(Follow("Orders"), Follow(f"Order {order.id}"), Say(str(quantity))),
        gates=UNTOUCHED,
    )


LOOKING = (
    Template("shop-open", "shop", 1, _open),
    Template("shop-ask", "shop", 1, _ask),
    Template("shop-extreme", "shop", 1, _extreme),
    Template("shop-search", "shop", 2, _search),
    Template("shop-order-page", "shop", 2, _order_page),
    Template("shop-extreme-page", "shop", 2, _extreme_page),
    Template("shop-show", "shop", 3, _show),
)
