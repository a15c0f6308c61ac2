"""A shop: categories, search, products, a basket, orders."""

from envs.sites.bundled.shop.pages import SHOP
from envs.sites.bundled.shop.world import DELIVERIES, Order, Product, ShopWorld, shop_world

__all__ = ["DELIVERIES", "SHOP", "Order", "Product", "ShopWorld", "shop_world"]
