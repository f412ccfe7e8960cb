"""Private training, for Python. It lives in addons/privacy/."""

from .addons.privacy import Privacy, clip_each_example, epsilon_of, least_noise, most_steps
from .addons.privacy.book import check_layers

__all__ = ["Privacy", "check_layers", "clip_each_example", "epsilon_of", "least_noise", "most_steps"]
