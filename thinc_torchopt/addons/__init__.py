"""Parts that take part in a run, or stand beside it: blocks of the config, layers, loggers, tools.

No add-on imports another, but for the pairs that pyproject.toml lists, and neither core nor the loop knows one.
"""
