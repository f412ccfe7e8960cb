"""Send messages to a web address, in a thread beside the training."""

from __future__ import annotations

import atexit
import json
import logging
import socket
import threading
from collections import deque
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ipaddress import ip_address
from typing import Any, NoReturn
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from ..checks import Section
from ..errors import ConfigError

MAX_WAITING = 100

_SECTION = Section("the arguments")

logger = logging.getLogger("thinc_torchopt.controller")


class Webhook:
    """Sends JSON by POST, in a thread. Failures are logged without the address, which may have a secret in it.

    Addresses in the local network are allowed, as hooks are often there. Link-local addresses are not: cloud machines
    serve their credentials there.

    url (str): "http://..." or "https://...".
    timeout_seconds (float): Time-out of each network operation.
    setting (str): The name of the setting with the address, for errors, which don't show an address from elsewhere.
    may_be_link_local (bool): Allow link-local addresses.
    RAISES (ConfigError): The address is invalid or link-local. Host names are resolved and checked when a message is
        sent.
    """

    def __init__(self, url: Any, timeout_seconds: float, *, setting: str = "url", may_be_link_local: bool = False):
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            is_address &= "@" not in parts.netloc  # urllib would take it as a part of the host name
        except (ValueError, AttributeError, TypeError):
            is_address = False
        if not is_address or any(ord(letter) <= 32 or ord(letter) > 126 for letter in url):
            _SECTION.refuse(
                setting,
                'an address as in "https://example.org/hook", without user and password',
                url if setting == "url" else "another",
            )
        if not may_be_link_local:
            with suppress(OSError):  # a host name, which is not numeric
                _check_address(str(parts.hostname), parts.port, socket.AI_NUMERICHOST)
        self.host = parts.hostname
        self._url = url
        self._timeout = timeout_seconds
        checking = () if may_be_link_local else (_Http(), _Https())
        self._opener = build_opener(_NoRedirects(), *checking)
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, content: dict[str, Any]) -> None:
        """Queue a message. If too many wait, the oldest are dropped."""
        with self._lock:
            if len(self._waiting) == MAX_WAITING:
                logger.warning("Dropped a notification to %s: %d wait to be sent.", self.host, MAX_WAITING)
            self._waiting.append(json.dumps(content, default=str).encode("utf8"))
            if self._thread is None:
                thread = threading.Thread(target=self._post_all, daemon=True, name="thinc-torchopt-webhook")
                try:
                    thread.start()
                except RuntimeError as error:  # the system has no more threads, or Python is shutting down
                    logger.warning("Can't send a notification to %s: %s.", self.host, error)
                    return
                self._thread = thread
        atexit.unregister(self.wait)
        atexit.register(self.wait)

    def wait(self) -> None:
        """Wait until all messages are sent, up to twice the time-out."""
        if (thread := self._thread) is not None:
            thread.join(2 * self._timeout)

    def _post_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                body = self._waiting.popleft()
            self._post(body)

    def _post(self, body: bytes) -> None:
        try:
            request = Request(self._url, data=body, headers={"Content-Type": "application/json"}, method="POST")
            with self._opener.open(request, timeout=self._timeout):
                pass
        except HTTPError as error:
            error.close()
            logger.warning("Can't send a notification to %s: it answered %d.", self.host, error.code)
        except ConfigError as error:
            logger.warning("Can't send a notification to %s: %s", self.host, error)
        except (OSError, HTTPException, ValueError) as error:
            logger.warning("Can't send a notification to %s: %s.", self.host, type(error).__name__)


def _check_address(host: str, port: int | None, flags: int = 0) -> None:
    """RAISES (ConfigError): It is a link-local address, or a name of one. (OSError): The name can't be resolved."""
    for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags):
        _check_ip(str(address[0]))


def _check_ip(text: str) -> None:
    address = ip_address(text)
    if (getattr(address, "ipv4_mapped", None) or address).is_link_local:
        _SECTION.refuse("url", "an address that is not link-local (169.254.0.0/16, fe80::/10)", text)


class _Connection(HTTPConnection):
    """A connection that refuses link-local addresses."""

    def connect(self) -> None:
        _check_address(self.host, self.port)
        super().connect()
        _check_ip(self.sock.getpeername()[0])  # the name may have been resolved to another address


class _SecureConnection(HTTPSConnection, _Connection):
    """The same for HTTPS. The address is checked before any data is sent: HTTPSConnection connects by the next
    class.
    """


class _Http(HTTPHandler):
    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_Connection, req)


class _Https(HTTPSHandler):
    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_SecureConnection, req)


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects: messages only go to the address in the definition."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> NoReturn:
        raise HTTPError(req.full_url, code, "redirected", headers, fp)
