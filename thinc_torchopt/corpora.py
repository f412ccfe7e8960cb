"""Readers of corpora: Python's documentation (addons/corpora.py), and what a teacher fills in (addons/teacher/)."""

from .addons.corpora import PythonDocs, load_topics
from .addons.teacher import TaughtCorpus, Teacher

__all__ = ["PythonDocs", "TaughtCorpus", "Teacher", "load_topics"]
