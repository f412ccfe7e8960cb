"""Federated training, for Python. It lives in addons/federated/."""

from .addons.federated import Federated, merge_labels

__all__ = ["Federated", "merge_labels"]
