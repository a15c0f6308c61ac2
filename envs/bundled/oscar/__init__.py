"""The code of the recipe ``oscar``: a django-oscar shop with 2,000 products.

It runs under the site's own Python, and nothing of the project imports it. A build copies this
folder (``deployments/sites/oscar.yaml``).
"""
