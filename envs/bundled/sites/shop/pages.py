"""The pages of the shop."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.responses import JSONResponse, Response

from envs.bundled.sites.app import Application, Visit, go
from envs.bundled.sites.shop.world import DELIVERIES, build_shop

SORTS = {
    "name": ("Name", "name"),
    "cheap": ("Price: low to high", "price"),
    "dear": ("Price: high to low", "price DESC"),
    "rating": ("Rating: best first", "rating DESC"),
}
MAX_RESULTS = 24
FIELDS = ("name", "street", "city")
LINES = "SELECT p.*, b.quantity, p.price * b.quantity AS total FROM basket b JOIN products p ON p.id = b.product ORDER BY p.name"
ORDER_LINES = "SELECT p.id, p.name, p.price, l.quantity FROM order_lines l JOIN products p ON p.id = l.product WHERE l.order_id = ? ORDER BY p.name"


def _frame(db: sqlite3.Connection) -> dict[str, Any]:
    categories = [row[0] for row in db.execute("SELECT DISTINCT category FROM products ORDER BY category")]
    (count,) = db.execute("SELECT coalesce(sum(quantity), 0) FROM basket").fetchone()
    return {"categories": categories, "basket_count": count}


def home(visit: Visit) -> Response:
    """Show categories and the best-rated products."""
    return visit.page("home.html", best=visit.all("SELECT * FROM products ORDER BY rating DESC, name LIMIT 4"))


def category(visit: Visit) -> Response:
    """Show products of a category, by brand and sorted."""
    name = visit.path["name"]
    visit.one("SELECT 1 FROM products WHERE category = ?", name)
    sort = visit.query.get("sort", "name")
    brand = visit.query.get("brand", "")
    sorted_by, order = SORTS.get(sort, SORTS["name"])
    products = visit.all(
        f"SELECT * FROM products WHERE category = ? AND (? = '' OR brand = ?) ORDER BY {order}", name, brand, brand
    )
    brands = [row[0] for row in visit.all("SELECT DISTINCT brand FROM products WHERE category = ? ORDER BY 1", name)]
    return visit.page(
        "category.html",
        category=name,
        products=products,
        brands=brands,
        brand=brand,
        sort=sort,
        sorts=SORTS,
        sorted_by=sorted_by,
    )


def search(visit: Visit) -> Response:
    """Show products whose name has every word."""
    query = visit.query.get("q", "").strip()
    words = query.split()
    where = " AND ".join(["name LIKE '%' || ? || '%'"] * len(words)) or "0"
    products = visit.all(f"SELECT * FROM products WHERE {where} ORDER BY name LIMIT {MAX_RESULTS}", *words)
    return visit.page("search.html", query=query, products=products)


def product(visit: Visit) -> Response:
    """Show the details of a product."""
    return visit.page(
        "product.html", product=visit.one("SELECT * FROM products WHERE id = ?", visit.path["id"]), quantity="1"
    )


def add(visit: Visit) -> Response:
    """Add a product to the basket, to the quantity that is there already."""
    row = visit.one("SELECT * FROM products WHERE id = ?", visit.path["id"])
    quantity = _count(visit.form_value("quantity"))
    there = visit.all("SELECT quantity FROM basket WHERE product = ?", row["id"])
    total = quantity + (there[0]["quantity"] if there else 0)
    if not 1 <= quantity <= total <= row["stock"]:
        error = f"Choose a quantity from 1 to {row['stock']} in all."
        return visit.page("product.html", status=422, product=row, quantity=visit.form_value("quantity"), error=error)
    visit.db.execute("INSERT OR REPLACE INTO basket VALUES (?, ?)", (row["id"], total))
    return go("/basket")


def basket(visit: Visit, error: str = "") -> Response:
    """Show the basket."""
    lines = visit.all(LINES)
    return visit.page(
        "basket.html",
        lines=lines,
        total=sum(line["total"] for line in lines),
        error=error,
        status=422 if error else 200,
    )


def change(visit: Visit) -> Response:
    """Change a quantity in the basket; 0 removes the product."""
    row = visit.one("SELECT p.* FROM basket b JOIN products p ON p.id = b.product WHERE p.id = ?", visit.path["id"])
    quantity = _count(visit.form_value("quantity"))
    if not 0 <= quantity <= row["stock"]:
        return basket(visit, f"Choose a quantity from 0 to {row['stock']} for {row['name']}.")
    if quantity:
        visit.db.execute("UPDATE basket SET quantity = ? WHERE product = ?", (quantity, row["id"]))
        return go("/basket")
    return remove(visit)


def remove(visit: Visit) -> Response:
    """Remove a product from the basket."""
    visit.db.execute("DELETE FROM basket WHERE product = ?", (visit.path["id"],))
    return go("/basket")


def checkout(visit: Visit, error: str = "") -> Response:
    """Show the form for address and delivery."""
    lines = visit.all(LINES)
    if not lines:
        return go("/basket")
    given = {name: visit.form_value(name) for name in (*FIELDS, "delivery", "gift")}
    total = sum(line["total"] for line in lines)
    return visit.page(
        "checkout.html",
        given=given,
        deliveries=DELIVERIES,
        total=total,
        error=error,
        status=422 if error else 200,
    )


def place(visit: Visit) -> Response:
    """Make an order of the basket."""
    given = [visit.form_value(name) for name in FIELDS]
    if not all(given):
        return checkout(visit, "Fill in name, street and city.")
    if visit.form_value("delivery") not in DELIVERIES:
        return checkout(visit, "Choose a delivery.")
    lines = visit.all(LINES)
    if not lines:
        return go("/basket")
    (number,) = visit.one("SELECT max(id) + 1 FROM orders")
    values = (number, *given, visit.form_value("delivery"), int(bool(visit.form_value("gift"))), "processing")
    visit.db.execute("INSERT INTO orders VALUES (?,?,?,?,?,?,?)", values)
    visit.db.execute("INSERT INTO order_lines SELECT ?, product, quantity FROM basket", (number,))
    visit.db.execute(
        "UPDATE products SET stock = stock - (SELECT quantity FROM basket WHERE product = id) WHERE id IN (SELECT product FROM basket)"
    )
    visit.db.execute("DELETE FROM basket")
    return go(f"/orders/{number}")


def orders(visit: Visit) -> Response:
    """Show all orders, the newest first."""
    rows = visit.all("SELECT * FROM orders ORDER BY id DESC")
    return visit.page("orders.html", orders=[(row, visit.all(ORDER_LINES, row["id"])) for row in rows])


def order(visit: Visit) -> Response:
    """Show one order."""
    row = visit.one("SELECT * FROM orders WHERE id = ?", visit.path["id"])
    return visit.page("order.html", order=row, lines=visit.all(ORDER_LINES, row["id"]))


def cancel(visit: Visit) -> Response:
    """Cancel an order that is not on its way yet."""
    number = visit.path["id"]
    visit.one("SELECT 1 FROM orders WHERE id = ?", number)
    visit.db.execute("UPDATE orders SET status = 'cancelled' WHERE id = ? AND status = 'processing'", (number,))
    return go(f"/orders/{number}")


def order_json(visit: Visit) -> Response:
    """Return an order for grading."""
    row = visit.one("SELECT * FROM orders WHERE id = ?", visit.path["id"])
    return JSONResponse({**dict(row), "lines": [dict(line) for line in visit.all(ORDER_LINES, row["id"])]})


def _count(text: str) -> int:
    """Parse a typed whole number; -1 if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else -1


SHOP = Application(
    name="shop",
    title="Corner Shop",
    build=build_shop,
    frame=_frame,
    pages={
        "GET /": home,
        "GET /category/{name}": category,
        "GET /search": search,
        "GET /product/{id:int}": product,
        "POST /product/{id:int}": add,
        "GET /basket": basket,
        "POST /basket/{id:int}": change,
        "POST /basket/{id:int}/remove": remove,
        "GET /checkout": checkout,
        "POST /checkout": place,
        "GET /orders": orders,
        "GET /orders/{id:int}": order,
        "POST /orders/{id:int}/cancel": cancel,
        "GET /api/orders/{id:int}": order_json,
    },
)
"""The shop."""
