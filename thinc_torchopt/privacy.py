"""Private training, for Python. It lives in addons/privacy/."""

from .addons.privacy import Privacy, clip_each_example, epsilon_of, least_noise, most_steps

__all__ = ["Privacy", "clip_each_example", "epsilon_of", "least_noise", "most_steps"]
