"""The registry `@torch_optimizers`.

It hangs on thinc's registry class, so that thinc's, spaCy's and everybody's config system sees it. Its entry point
group is `thinc_torch_optimizers`: other packages can add algorithms of their own.
"""

from thinc.api import registry

if not hasattr(registry, "torch_optimizers"):
    registry.create("torch_optimizers", entry_points=True)

__all__ = ["registry"]
