"""The registries `@torch_optimizers`, `@gradient_modules`, `@regularizers`, `@controller_metrics` and
`@controller_operations`.

They hang on thinc's registry class, so that thinc's, spaCy's and everybody's config system sees them. The group of
entry points of each is its name after `thinc_`: other packages can add their own.
"""

from thinc.api import registry

for _name in ("torch_optimizers", "gradient_modules", "regularizers", "controller_metrics", "controller_operations"):
    if not hasattr(registry, _name):
        registry.create(_name, entry_points=True)

__all__ = ["registry"]
