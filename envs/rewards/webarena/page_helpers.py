"""VisualWebArena's ``func:`` helpers that read the shown page of its shop or forum.

What is not on the page is an empty text or 0, as in the benchmark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envs.rewards.webarena.helpers import Helper, get_query_text
from envs.types import PageScriptError

PRICE = "shopping_get_product_price"
"""The one helper whose number may have a fraction."""

_ORDER = """[...document.querySelector("#my-orders-table").getElementsByTagName("tbody")].map(row => {
  const product = {};
  for (const cell of row.getElementsByTagName("td")) {
    const name = cell.className.split(" ")[1];
    product[name] = cell.outerText;
    const list = name === "name" ? cell.querySelector("dl") : null;
    if (list) {
      const pairs = [...list.children];
      product.options = {};
      for (let at = 0; at < pairs.length; at += 2) product.options[pairs[at].outerText] = pairs[at + 1].outerText;
    }
  }
  return product;
})"""
_ATTRIBUTES = """(wanted => [...document.querySelector("#productDetails_detailBullets_sections1 > tbody").children]
  .filter(row => wanted.some(name => row.children[0].outerText.toLowerCase().includes(name)))
  .map(row => row.children[1].outerText).join(", "))(%s)"""
_PRICE = """parseFloat(document.querySelector("#maincontent > div.columns > div > div.product-info-main > "
  + "div.product-info-price > div.price-box.price-final_price > span > span").outerText.substr(1)) || 0"""
_REVIEWS = """parseInt(document.querySelector("#tab-label-reviews-title").outerText.split(" ")[1]) || 0"""
_RATING = """parseFloat(document.querySelector(".rating-result").title.replace("%", "")) || 0"""
_COMMENTS = """(function read(node, level) {
  return {
    username: node.querySelector(".fg-inherit").outerText,
    content: node.querySelector(".comment__content").outerText,
    time: Date.parse(node.querySelector(".comment__main > header > h1 > span > time").dateTime),
    children: [...node.querySelectorAll(".comment")]
      .filter(one => parseInt(one.getAttribute("data-level")) === level + 1).map(one => read(one, level + 1)),
  };
})(document.querySelector("#main"), 0)"""

_FAILED = (KeyError, TypeError, ValueError, IndexError)
"""Errors of a page that is not the one that a helper reads."""


async def _value(page: Any, expression: str, otherwise: Any) -> Any:
    try:
        return await page.evaluate(expression)
    except PageScriptError:
        return otherwise


async def get_query_text_lowercase(page: Any, selector: str) -> str:
    """Text of the first element of a selector in lower case; empty without one."""
    return (await get_query_text(page, selector)).lower()


async def shopping_get_order_product_name_list(page: Any) -> str:
    """Names of the products of the shown order, separated by `` |OR| ``."""
    try:
        return " |OR| ".join(product["name"] for product in await _value(page, _ORDER, []))
    except _FAILED:
        return ""


async def shopping_get_order_product_quantity(page: Any, sku: str) -> str:
    """Number that the shown order has of a product, or of the first of several ``a |OR| b``."""
    try:
        for product in await _value(page, _ORDER, []):
            if product["sku"].strip() in sku.split(" |OR| "):
                return str(int(product["qty"][len("Ordered") :]))
    except _FAILED:
        pass  # a row without these cells: no order of the shop, as in the benchmark
    return "0"


async def shopping_get_order_product_option(page: Any, sku: str, option: str) -> str:
    """Option of a product of the shown order."""
    try:
        for product in await _value(page, _ORDER, []):
            if product["sku"].strip() == sku:
                return str(product["options"][option])
    except _FAILED:
        pass  # a row without these cells, or a product without the option
    return ""


async def shopping_get_product_attributes(page: Any, attribute: str) -> str:
    """Values of the rows of the product's table whose names have one of ``a |OR| b``."""
    return str(await _value(page, _ATTRIBUTES % json.dumps(attribute.lower().split(" |or| ")), ""))


async def shopping_get_product_price(page: Any) -> str:
    """Price of the shown product; 0 without one."""
    return str(await _value(page, _PRICE, 0))


async def shopping_get_num_reviews(page: Any) -> str:
    """Number of reviews of the shown product."""
    return str(await _value(page, _REVIEWS, 0))


async def shopping_get_rating_as_percentage(page: Any) -> str:
    """Rating of the shown product in percent."""
    return str(await _value(page, _RATING, 0))


async def reddit_get_latest_comment_content_by_username(page: Any, username: str) -> str:
    """Text of a user's newest comment on the shown post."""
    return await _newest(page, username, parent=False)


async def reddit_get_parent_comment_username_of_latest_comment_by_username(page: Any, username: str) -> str:
    """Name of the user whose comment a user's newest one answers."""
    return await _newest(page, username, parent=True)


async def _newest(page: Any, username: str, *, parent: bool) -> str:
    """Return the text of a user's newest comment, or the name above it.

    As in the benchmark, the post itself is the root of the tree, and comments below one of the
    user's own are not looked at for the name above.
    """
    latest, text = float("-inf"), ""

    def visit(node: dict[str, Any]) -> None:
        nonlocal latest, text
        if not parent and node["username"] == username and node["time"] > latest:
            latest, text = node["time"], node["content"]
        for child in node["children"]:
            if parent and child["username"] == username:
                if child["time"] > latest:
                    latest, text = child["time"], node["username"]
            else:
                visit(child)

    try:
        visit(await _value(page, _COMMENTS, {}))
    except _FAILED:
        return ""  # no post, or a comment without a date
    return text


PAGE_HELPERS: Mapping[str, Helper] = {
    helper.__name__: helper
    for helper in (
        get_query_text_lowercase,
        reddit_get_latest_comment_content_by_username,
        reddit_get_parent_comment_username_of_latest_comment_by_username,
        shopping_get_num_reviews,
        shopping_get_order_product_name_list,
        shopping_get_order_product_option,
        shopping_get_order_product_quantity,
        shopping_get_product_attributes,
        shopping_get_product_price,
        shopping_get_rating_as_percentage,
    )
}
"""Helpers by the benchmark's names."""
