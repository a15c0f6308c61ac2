"""A shop: categories, search, products, a basket, orders."""

from envs.bundled.sites.shop.pages import SHOP
from envs.bundled.sites.shop.world import DELIVERIES, Product, ShopWorld, shop_world

__all__ = ["DELIVERIES", "SHOP", "Product", "ShopWorld", "shop_world"]
