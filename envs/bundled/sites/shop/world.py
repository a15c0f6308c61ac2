"""The world of the shop, a pure function of the seed: products and earlier orders.

Answers are unambiguous: names and prices are unique, and ratings and weights are unique in a
category.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import astuple, dataclass
from functools import lru_cache

from envs.bundled.sites.words import BRANDS, CITIES, COLOURS, FIRST_NAMES, GOODS, LAST_NAMES, MATERIALS, STREETS

CATEGORIES = 6
PER_CATEGORY = 8
ORDERS = 6
FIRST_ORDER = 1001
MIN_STOCK, MAX_STOCK = 8, 60
"""Smallest and largest stock of a product: enough for any task."""
DELIVERIES = ("Standard", "Express", "Pick-up")
STATUSES = ("processing", "processing", "shipped", "delivered")
"""Statuses to draw from. An order that is processing can be cancelled, and every world has one."""

SCHEMA = """
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT UNIQUE, category TEXT, brand TEXT, colour TEXT, material TEXT, price INTEGER,
  weight INTEGER, rating REAL, stock INTEGER);
CREATE TABLE basket (product INTEGER PRIMARY KEY REFERENCES products, quantity INTEGER);
CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, street TEXT, city TEXT, delivery TEXT, gift INTEGER, status TEXT);
CREATE TABLE order_lines (order_id INTEGER REFERENCES orders, product INTEGER REFERENCES products, quantity INTEGER,
  PRIMARY KEY (order_id, product));
"""


@dataclass(frozen=True, slots=True)
class Product:
    """Something that is sold; the fields are the columns of its table."""

    id: int
    name: str
    category: str
    brand: str
    colour: str
    material: str
    price: int
    """Price in cents."""
    weight: int
    """Weight in grams."""
    rating: float
    """Rating from 1.0 to 5.0."""
    stock: int


@dataclass(frozen=True, slots=True)
class Order:
    """An order from before the episode."""

    id: int
    name: str
    street: str
    city: str
    delivery: str
    gift: bool
    status: str
    lines: tuple[tuple[int, int], ...]
    """(product, quantity) of each line; a product is in one order at most."""


@dataclass(frozen=True, slots=True)
class ShopWorld:
    """Everything in a seed's shop."""

    seed: int
    products: tuple[Product, ...]
    orders: tuple[Order, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """Categories in the order of the menu."""
        return tuple(dict.fromkeys(product.category for product in self.products))

    def of_category(self, category: str) -> tuple[Product, ...]:
        """Return the products of a category."""
        return tuple(product for product in self.products if product.category == category)

    def name_of(self, product: int) -> str:
        """Return the name of the product with this id."""
        return next(item.name for item in self.products if item.id == product)


@lru_cache(maxsize=64)
def shop_world(seed: int) -> ShopWorld:
    """Make the shop of a seed."""
    source = random.Random(f"shop/{seed}")
    products = _make_products(source)
    return ShopWorld(seed, products, _make_orders(source, products))


def build_shop(seed: int, db: sqlite3.Connection) -> None:
    """Fill an empty database with a seed's shop."""
    world = shop_world(seed)
    db.executescript(SCHEMA)
    products = [astuple(product) for product in world.products]
    db.executemany("INSERT INTO products VALUES (?,?,?,?,?,?,?,?,?,?)", products)
    for order in world.orders:
        values = (order.id, order.name, order.street, order.city, order.delivery, int(order.gift), order.status)
        db.execute("INSERT INTO orders VALUES (?,?,?,?,?,?,?)", values)
        db.executemany("INSERT INTO order_lines VALUES (?,?,?)", [(order.id, *line) for line in order.lines])
    db.executescript("CREATE TABLE before_orders AS SELECT * FROM orders")


def _make_products(source: random.Random) -> tuple[Product, ...]:
    count = CATEGORIES * PER_CATEGORY
    numbers = source.sample(range(100, 1000), count)
    prices = source.sample(range(395, 29995, 5), count)
    products: list[Product] = []
    for category in sorted(source.sample(sorted(GOODS), CATEGORIES)):
        ratings = source.sample(range(21, 50), PER_CATEGORY)
        weights = source.sample(range(60, 4000, 10), PER_CATEGORY)
        names: set[tuple[str, str]] = set()
        things = source.sample(GOODS[category], 4)  # each about twice, from different brands
        while len(names) < PER_CATEGORY:
            names.add((source.choice(BRANDS), source.choice(things)))
        for (brand, thing), rating, weight in zip(sorted(names), ratings, weights, strict=True):
            products.append(
                Product(
                    id=numbers[len(products)],
                    name=f"{brand} {thing}",
                    category=category,
                    brand=brand,
                    colour=source.choice(COLOURS),
                    material=source.choice(MATERIALS),
                    price=prices[len(products)],
                    weight=weight,
                    rating=rating / 10,
                    stock=source.randint(MIN_STOCK, MAX_STOCK),
                )
            )
    return tuple(products)


def _make_orders(source: random.Random, products: tuple[Product, ...]) -> tuple[Order, ...]:
    name = f"{source.choice(FIRST_NAMES)} {source.choice(LAST_NAMES)}"
    bought = source.sample([product.id for product in products], 2 * ORDERS)
    orders = []
    for number in range(ORDERS):
        status = "processing" if number == ORDERS - 1 else source.choice(STATUSES)
        orders.append(
            Order(
                id=FIRST_ORDER + number,
                name=name,
                street=f"{source.choice(STREETS)} {source.randint(1, 99)}",
                city=source.choice(CITIES),
                delivery=source.choice(DELIVERIES),
                gift=source.random() < 0.3,
                status=status,
                lines=tuple((product, source.randint(1, 4)) for product in bought[2 * number : 2 * number + 2]),
            )
        )
    return tuple(orders)
