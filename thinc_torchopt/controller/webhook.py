"""Messages to a web address, on their way beside the training."""

from __future__ import annotations

import atexit
import json
import logging
import threading
from collections import deque
from http.client import HTTPException
from typing import Any, NoReturn
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ..checks import Section

MAX_WAITING = 100

_SECTION = Section("the arguments")

logger = logging.getLogger("thinc_torchopt.controller")


class Webhook:
    """Sends JSON by POST, in a thread. What goes wrong is logged, without the address: that may hold a password.

    url (str): "http://..." or "https://...".
    timeout_seconds (float): For each wait for the other side.
    RAISES (ConfigError): It is no such address.
    """

    def __init__(self, url: str, timeout_seconds: float):
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except (ValueError, AttributeError, TypeError):
            is_address = False
        if not is_address or any(ord(letter) <= 32 or ord(letter) > 126 for letter in url):
            _SECTION.refuse("url", 'an address as in "https://example.org/hook"', url)
        self.host = parts.hostname
        self._url = url
        self._timeout = timeout_seconds
        self._opener = build_opener(_NoRedirects())
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, content: dict[str, Any]) -> None:
        """Send it when all that came before is sent. Where too many wait, the oldest are left out."""
        with self._lock:
            if len(self._waiting) == MAX_WAITING:
                logger.warning("Left out a notification to %s: %d wait to be sent.", self.host, MAX_WAITING)
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
        """Wait until all is sent; twice the time-out at most."""
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
        except (OSError, HTTPException, ValueError) as error:
            logger.warning("Can't send a notification to %s: %s.", self.host, type(error).__name__)


class _NoRedirects(HTTPRedirectHandler):
    """Where a message goes is what the definition says."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> NoReturn:
        raise HTTPError(req.full_url, code, "redirected", headers, fp)
