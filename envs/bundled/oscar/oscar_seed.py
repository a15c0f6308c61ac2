"""Fills the shop: 2,000 products in 12 categories, customers, orders, and the search index.

Run once by the build, in the state folder. Everything but dates is the same in each build.
"""

import json
import random
import shutil
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

import django

django.setup()

from django.conf import settings  # noqa: E402
from django.contrib.auth import get_user_model  # noqa: E402
from django.contrib.sites.models import Site  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import transaction  # noqa: E402
from django.test import Client  # noqa: E402
from oscar.apps.catalogue.models import Category, Product, ProductCategory, ProductClass  # noqa: E402
from oscar.apps.catalogue.reviews.models import ProductReview  # noqa: E402
from oscar.apps.partner.models import Partner, StockRecord  # noqa: E402
from oscar.core.loading import get_model  # noqa: E402

PRODUCTS = 2000
CATEGORIES = (
    "Kitchen",
    "Garden",
    "Office",
    "Lighting",
    "Bedding",
    "Bathroom",
    "Tools",
    "Toys",
    "Outdoor",
    "Storage",
    "Textiles",
    "Tableware",
)
ADJECTIVES = (
    "Amber", "Birch", "Copper", "Dapple", "Ember", "Fern", "Granite", "Harbour", "Indigo", "Juniper", "Kestrel",
    "Linen", "Maple", "Nettle", "Olive", "Pebble", "Quartz", "Rowan", "Saffron", "Thistle", "Umber", "Velvet",
    "Willow", "Yarrow", "Zephyr",
)  # fmt: skip
NOUNS = (
    "Basket", "Bench", "Blanket", "Bottle", "Bowl", "Box", "Brush", "Bucket", "Candle", "Chair", "Clock", "Cloth",
    "Crate", "Cup", "Curtain", "Cushion", "Desk", "Dish", "Drawer", "Frame", "Glass", "Hammer", "Hook", "Jug",
    "Kettle", "Knife", "Ladder", "Lamp", "Mat", "Mirror", "Mug", "Pan", "Pillow", "Pitcher", "Plate", "Pot",
    "Rack", "Rug", "Saw", "Scale", "Shelf", "Spade", "Spoon", "Stool", "Table", "Teapot", "Towel", "Tray",
    "Trowel", "Vase", "Whisk", "Bell", "Broom", "Comb", "Easel", "Fan", "Globe", "Hamper", "Ink", "Kite", "Lid",
    "Mask", "Net", "Oar", "Peg", "Quilt", "Rope", "Sieve", "Tent", "Urn", "Visor", "Wagon", "Yoke", "Apron",
    "Barrel", "Case", "Drum", "Flask", "Grater", "Hose",
)  # fmt: skip
"""25 x 80 names, as many as products."""
PASSWORD = "hazel-and-oak-7"
CUSTOMERS = (("ann@shop.example", "Ann", "Marlow"), ("ben@shop.example", "Ben", "Orchard"))


def main() -> None:
    """Make the database, the pictures and the index."""
    settings.MIGRATION_MODULES = dict.fromkeys(app.rpartition(".")[2] for app in settings.INSTALLED_APPS)
    settings.MIGRATION_MODULES |= dict.fromkeys(config.label for config in django.apps.apps.get_app_configs())
    call_command("migrate", run_syncdb=True, verbosity=0)
    settings.MEDIA_ROOT.mkdir()
    picture = files("oscar") / "static" / "oscar" / "img" / "image_not_found.jpg"
    shutil.copy(str(picture), settings.MEDIA_ROOT / settings.OSCAR_MISSING_IMAGE_URL)
    Site.objects.update_or_create(id=1, defaults={"domain": "shop.example", "name": settings.OSCAR_SHOP_NAME})
    with transaction.atomic():
        make_products(random.Random(0))
        make_customers()
    call_command("rebuild_index", interactive=False, verbosity=0)
    client = log_in()
    for path in ("/catalogue/", "/catalogue/category/kitchen_1/", "/basket/"):  # makes the thumbnails
        client.get(path, follow=True)


def make_products(draw: random.Random) -> None:
    """Make categories and products with a price and a stock."""
    kind = ProductClass.objects.create(name="Thing", requires_shipping=True, track_stock=True)
    partner = Partner.objects.create(name="Hazel and Oak", code="hazel")
    categories = [Category.add_root(name=name, slug=name.lower()) for name in CATEGORIES]
    names = [f"{adjective} {noun}" for noun in NOUNS for adjective in ADJECTIVES]
    draw.shuffle(names)
    for number, title in enumerate(names[:PRODUCTS], 1):
        Product(
            title=title,
            slug=title.lower().replace(" ", "-"),
            upc=f"H{number:05d}",
            product_class=kind,
            description=f"A {title.lower()} of {draw.choice(('wood', 'steel', 'wool', 'clay', 'glass', 'cotton'))}, "
            f"{draw.randint(10, 180)} cm, made in {draw.choice(('Porto', 'Turku', 'Ghent', 'Graz', 'Cork', 'Lund'))}.",
        ).save()
    products = list(Product.objects.order_by("id"))
    ProductCategory.objects.bulk_create(
        ProductCategory(product=product, category=draw.choice(categories)) for product in products
    )
    StockRecord.objects.bulk_create(
        StockRecord(
            product=product,
            partner=partner,
            partner_sku=product.upc,
            price_currency="GBP",
            price=Decimal(draw.randint(199, 19_999)) / 100,
            num_in_stock=draw.choice((0, 3, 12, 40, 120)),
        )
        for product in products
    )


def make_customers() -> None:
    """Make customers, their addresses and the countries that are delivered to."""
    country = get_model("address", "Country")
    for code, name in (("GB", "United Kingdom"), ("IE", "Ireland"), ("PT", "Portugal")):
        country.objects.create(
            iso_3166_1_a2=code, printable_name=name, name=name, is_shipping_country=True, display_order=0
        )
    for email, first, last in CUSTOMERS:
        user: Any = get_user_model().objects.create_user(email.partition("@")[0], email, PASSWORD)
        user.first_name, user.last_name = first, last
        user.save()
        get_model("address", "UserAddress").objects.create(
            user=user, first_name=first, last_name=last, line1="7 Mill Lane", line4="Corkham", postcode="CO1 2AB",
            country_id="GB",
        )  # fmt: skip
    reader = get_user_model().objects.get(username="ben")
    for number, score in ((1, 5), (2, 3), (3, 1)):
        ProductReview.objects.create(
            product_id=number, user=reader, title=f"{score} stars from me", body="Used daily.", score=score,
            status=ProductReview.APPROVED,
        )  # fmt: skip


def log_in() -> Client:
    """Log a customer in, and write what her browser then keeps."""
    client = Client(SERVER_NAME="127.0.0.1")
    assert client.login(username=CUSTOMERS[0][0], password=PASSWORD)
    cookie = {
        "name": settings.SESSION_COOKIE_NAME,
        "value": client.cookies[settings.SESSION_COOKIE_NAME].value,
        "domain": "127.0.0.1",
        "path": "/",
        "expires": -1,
        "httpOnly": True,
        "secure": False,
        "sameSite": "Lax",
    }
    Path("login.json").write_text(json.dumps({"cookies": [cookie], "origins": []}))
    return client


if __name__ == "__main__":
    main()
