"""Federated training, for Python. It lives in addons/federated/."""

from .addons.federated import ClientPrivacy, Federated, FlowerStrategy, UpdateGuard, merge_labels
from .addons.federated.results import read_result

__all__ = ["ClientPrivacy", "Federated", "FlowerStrategy", "UpdateGuard", "merge_labels", "read_result"]
