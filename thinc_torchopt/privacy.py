"""Private training, for Python. It lives in addons/privacy/."""

from .addons.privacy import Privacy, clip_each_example

__all__ = ["Privacy", "clip_each_example"]
