"""The shop as a WSGI application, and what each fork of it makes anew."""

from django.core.wsgi import get_wsgi_application
from django.db import connections

application = get_wsgi_application()


def after_fork() -> None:
    """Close the connections that the template had; a request opens its own."""
    connections.close_all()
