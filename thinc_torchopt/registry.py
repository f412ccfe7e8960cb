"""The registries `@torch_optimizers`, `@controller_metrics` and `@controller_operations`.

They hang on thinc's registry class, so that thinc's, spaCy's and everybody's config system sees them. Their entry point
groups are `thinc_torch_optimizers`, `thinc_controller_metrics` and `thinc_controller_operations`: other packages can
add their own.
"""

from thinc.api import registry

for _name in ("torch_optimizers", "controller_metrics", "controller_operations"):
    if not hasattr(registry, _name):
        registry.create(_name, entry_points=True)

__all__ = ["registry"]
