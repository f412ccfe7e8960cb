"""Every exception and warning of the package.

TorchOptError
├── ConfigError (ValueError)       a setting that can't work
│   └── ScheduleError              a schedule without values, or with arguments or values that can't be
├── ParamError (ValueError)        a param that can't be optimized
│   └── ShapeError                 its shape is not the one that it had before
├── PipelineError (ValueError)     a pipeline with nothing to train, or not initialized
└── NonFiniteGradError (RuntimeError)   too many updates in a row had NaN or infinite gradients

Warning
└── TorchOptWarning (UserWarning)
    ├── HostWarning                a spaCy or thinc that is not what we know
    ├── NonFiniteGradWarning       an update was skipped
    ├── PipelineWarning            a pipeline with nothing to train
    └── ScheduleWarning            a schedule ended, its last value stays

The text of each says: what failed, for which (by name or config path), what was expected and found, what to do.
"""


class TorchOptError(Exception):
    """Base of all errors that the package raises on purpose."""


class ConfigError(TorchOptError, ValueError):
    """A setting in the config, or an argument, that can't work."""


class ScheduleError(ConfigError):
    """A schedule that has no values, or arguments or values that can't be."""


class ParamError(TorchOptError, ValueError):
    """A param that can't be optimized."""


class ShapeError(ParamError):
    """A param or gradient whose shape is not the expected one."""


class PipelineError(TorchOptError, ValueError):
    """A pipeline that has nothing to train, or that was not initialized."""


class NonFiniteGradError(TorchOptError, RuntimeError):
    """Too many updates in a row were skipped because of NaN or infinite gradients."""


class TorchOptWarning(UserWarning):
    """Base of all warnings that the package gives."""


class HostWarning(TorchOptWarning):
    """The installed spaCy or thinc is not one that the package knows."""


class NonFiniteGradWarning(TorchOptWarning):
    """An update was skipped because a gradient was not finite."""


class PipelineWarning(TorchOptWarning):
    """A pipeline has nothing to train."""


class ScheduleWarning(TorchOptWarning):
    """A schedule ended; its last value stays."""
