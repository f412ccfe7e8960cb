"""The corpus of Python's documentation. It lives in addons/corpora.py."""

from .addons.corpora import PythonDocs, load_topics

__all__ = ["PythonDocs", "load_topics"]
