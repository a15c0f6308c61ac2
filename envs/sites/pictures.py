"""Reads the pictures that tasks and their checks name: files, or those of hosts that a run allows.

A name is an address, the placeholder of a site with a path (``__HOMEPAGE__/a.png``), or a path. It
is first looked for in the folder ``tasks.pictures``: an address below its host
(``images.pexels.com/photos/1.jpeg``, without its query), a placeholder below the site's name
(``homepage/a.png``). An address that is no file there is asked for if its origin is that of
``tasks.addresses`` or ``tasks.reach``.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from envs.egress import AllowList
from envs.sites.live import LiveOptions, split_address
from envs.sites.site_http import Server
from envs.types import SiteError
from envs.types.webarena import PLACEHOLDER

MAX_BYTES = 20_000_000
"""Bytes of a picture's file."""
_SHOWN = 200


class PictureReader:
    """Reads pictures by their names."""

    def __init__(
        self, folder: str = "", addresses: Mapping[str, str] | None = None, allow: AllowList | None = None
    ) -> None:
        """
        Args:
            folder: Folder of files; empty for none.
            addresses: Addresses of sites by name, which may be asked.
            allow: Further addresses that may be asked.
        """
        self._folder = folder
        self._addresses = addresses or {}
        named = AllowList.of(*(split_address(one)[0] for one in self._addresses.values()))
        self._allow = AllowList((*named.origins, *(allow or AllowList()).origins))

    @classmethod
    def of(cls, live: LiveOptions, allow: AllowList | None = None) -> PictureReader:
        """Return the reader of a run.

        Args:
            allow: Addresses that the task's pages may reach; ``None`` for ``live.reach``.
        """
        return cls(live.pictures, live.addresses, AllowList.of(*live.reach) if allow is None else allow)

    async def read(self, name: str) -> bytes:
        """Return the bytes of a picture's file.

        Raises:
            SiteError: There is no such file, and its host may not be reached or has no picture.
        """
        if name.startswith("data:"):
            return _inline(name)
        file = self._file(name)
        if file is not None:
            data = await asyncio.to_thread(_read_file, file)
            if data is not None:
                return data
        address = PLACEHOLDER.sub(self._address_of, name)
        where = f"put it at {file}" if file is not None else "set tasks.pictures to a folder that has it"
        reason = "it has no address" if PLACEHOLDER.search(address) else self._allow.refuse_url(address)
        if reason is not None:
            hosts = "set tasks.addresses" if PLACEHOLDER.search(address) else "allow its host (tasks.reach)"
            raise SiteError(
                f"picture {name[:_SHOWN]}: is no file here and may not be fetched ({reason}); {where}, or {hosts}"
            )
        parts = urlsplit(address)
        server = Server(f"{parts.scheme}://{parts.netloc}", self._allow)
        status, body = await server.ask((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        if status != 200:
            raise SiteError(f"picture {name[:_SHOWN]}: its host answered {status}; expected 200, or {where}")
        return body

    async def read_all(self, names: Sequence[str]) -> tuple[bytes, ...]:
        """Return the pictures of an instruction as JPEG, PNG or WebP files.

        Raises:
            SiteError: As of `read`; or one is no picture.
        """
        return tuple([await asyncio.to_thread(_usual, name, await self.read(name)) for name in names])

    def _address_of(self, match: re.Match[str]) -> str:
        group = match.group()
        return self._addresses.get(group.strip("_").lower(), group).rstrip("/")

    def _file(self, name: str) -> Path | None:
        """Return the place of a picture below the folder; ``None`` without a folder."""
        if not self._folder:
            return None
        place = PLACEHOLDER.sub(lambda match: match.group().strip("_").lower(), name)
        if "://" in place:
            parts = urlsplit(place)
            place = f"{parts.hostname}/{parts.path.lstrip('/')}"
        path = PurePosixPath(unquote(place))
        if path.is_absolute() or ".." in path.parts or "\0" in place:
            raise SiteError(f"picture {name[:_SHOWN]}: leads out of tasks.pictures; name a file below it")
        return Path(self._folder, path)


def _read_file(file: Path) -> bytes | None:
    """Return the bytes of a file; ``None`` if there is none."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise SiteError(f"picture {file}: is larger than {MAX_BYTES:,} bytes")
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SiteError(f"picture {file}: cannot be read: {error.strerror}") from error


def _usual(name: str, data: bytes) -> bytes:
    """Return a picture in a format that models read."""
    from PIL import Image  # most tasks have no pictures

    try:
        with Image.open(BytesIO(data)) as picture:
            picture.load()
            if picture.format in ("JPEG", "PNG", "WEBP"):
                return data
            file = BytesIO()
            picture.convert("RGBA").save(file, "PNG")
            return file.getvalue()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise SiteError(f"picture {name[:_SHOWN]}: is no picture that can be read: {error}") from error


def _inline(address: str) -> bytes:
    head, _, data = address.partition(",")
    try:
        return base64.b64decode(unquote(data), validate=False) if head.endswith(";base64") else unquote_to_bytes(data)
    except (binascii.Error, ValueError) as error:
        raise SiteError(f"picture {address[:40]}…: cannot be decoded: {error}") from error
