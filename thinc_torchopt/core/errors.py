"""Every exception and warning of the package.

TorchOptError
├── ConfigError (ValueError)       a setting that can't work
│   ├── ConfigAttributeError (AttributeError)   an attribute that can't be read or set
│   ├── ConfigKeyError (KeyError)  missing or unknown settings
│   ├── ConfigTypeError (TypeError)   a setting of the wrong type
│   │   └── ConfigArgumentError    missing or unknown arguments; a ConfigKeyError too
│   ├── ControllerError            a controller definition that can't work, or a rule that failed
│   └── ScheduleError              a schedule without values, or with invalid arguments or values
├── AuxVarError (ValueError)       auxiliary variables that can't be used
│   ├── AuxVarKeyError (KeyError)  for an unknown module or other params, or incomplete
│   └── AuxVarTypeError (TypeError)   of the wrong type
├── ParamError (ValueError)        a param that can't be optimized
│   └── ShapeError                 its shape differs from before
├── LearnRateIntegrityError (RuntimeError)   other code wrote to a param group
├── DistributedError (RuntimeError)   one of several processes is gone, or does not fit the others
├── PipelineError (ValueError)     a pipeline with nothing to train, or not initialized
├── StateError (ValueError)        a training state that is damaged, or from another pipeline or config
│   └── StateKeyError (KeyError)   a missing or unexpected part
├── StateReadError (OSError)       files of a training state that can't be read, and may be undamaged
├── StreamError (ValueError)      a text of a stream that can't be learned
├── MessageError (ValueError)     a message of a federated training that can't be used
├── FederationError (RuntimeError) a federated training that can't go on
├── MissingPackageError (ImportError)   an optional package that is not installed
├── NonFiniteGradError (RuntimeError)   too many updates in a row are not finite, or one that can't be skipped
└── RollbackError (RuntimeError)   a training that diverges has no checkpoint to go back to, or went back too often

Warning
└── TorchOptWarning (UserWarning)
    ├── AuxVarWarning (RuntimeWarning)   there are no auxiliary variables to send yet
    ├── ConfigWarning              a setting that has no effect
    ├── CheckpointWarning          a checkpoint is damaged, from another config, or could not be written
    ├── GradSpikeWarning           the gradients of an update were far larger than usual
    ├── GrowthWarning              a param grew, and its state could not
    ├── HostWarning                an unknown version of spaCy or thinc, or functions put back
    ├── LearnRateWarning           other code wrote to a param group; says what was done about it
    ├── NonFiniteGradWarning       an update was skipped
    ├── PipelineWarning            a pipeline with nothing to train
    ├── PrecisionWarning           a precision that is slow here, or loses updates
    ├── RollbackWarning            the training went back to a checkpoint
    └── ScheduleWarning            a schedule ended; its last value is kept

Each message says what failed, for which param or config path, the expected and the found value, and what to do.
"""

from __future__ import annotations

import typing  # not Any itself: every class in this module is an error or a warning


class TorchOptError(Exception):
    """Base of all errors that the package raises on purpose."""

    __str__ = Exception.__str__  # and not that of KeyError, which puts the message in quotes


class ConfigError(TorchOptError, ValueError):
    """A setting in the config, or an argument, that can't work."""


class ConfigAttributeError(ConfigError, AttributeError):
    """An attribute that can't be read or set."""


class ConfigKeyError(ConfigError, KeyError):
    """Missing or unknown settings."""


class ConfigTypeError(ConfigError, TypeError):
    """A setting of the wrong type."""


class ConfigArgumentError(ConfigKeyError, ConfigTypeError):
    """Missing or unknown arguments: a TypeError for a call, a KeyError for a config."""


class ScheduleError(ConfigError):
    """A schedule that has no values, or invalid arguments or values."""


class ControllerError(ConfigError):
    """A controller definition that can't work, with all that is wrong; or a rule, metric or operation that failed."""


class AuxVarError(TorchOptError, ValueError):
    """Auxiliary variables of a federation that can't be used."""


class AuxVarKeyError(AuxVarError, KeyError):
    """Auxiliary variables for an unknown module or other params, or incomplete."""


class AuxVarTypeError(AuxVarError, TypeError):
    """Auxiliary variables of the wrong type."""


class ParamError(TorchOptError, ValueError):
    """A param that can't be optimized."""


class ShapeError(ParamError):
    """A param or gradient whose shape is not the expected one."""


class PipelineError(TorchOptError, ValueError):
    """A pipeline that has nothing to train, or that was not initialized."""


class DistributedError(TorchOptError, RuntimeError):
    """One of several processes that train together is gone, hangs, or does not fit the others."""


class StateError(TorchOptError, ValueError):
    """A training state that is damaged, or does not fit the pipeline, the config or the param."""


class StateKeyError(StateError, KeyError):
    """A part of a state is missing or unexpected."""


class StateReadError(TorchOptError, OSError):
    """Files of a training state can't be read, for example by this user. They may be undamaged."""


class StreamError(TorchOptError, ValueError):
    """A text of a stream can't be learned."""


class MessageError(TorchOptError, ValueError):
    """A message of a federated training that can't be used: damaged, of another version, or from another pipeline."""


class FederationError(TorchOptError, RuntimeError):
    """A federated training that can't go on: too few clients, or a global model that has diverged."""


class MissingPackageError(TorchOptError, ImportError):
    """An optional package that is not installed."""


class NonFiniteGradError(TorchOptError, RuntimeError):
    """Too many updates in a row were skipped because of NaN or infinite gradients; or one can't be skipped."""


class RollbackError(TorchOptError, RuntimeError):
    """A training that diverges has no checkpoint to go back to, or went back `max_rollbacks` times."""


class LearnRateIntegrityError(TorchOptError, RuntimeError):
    """A param group is not as the learn rate controller left it.

    fact (str): The change, as a sentence.
    advice (str): A frequent cause, and what to do.
    group (str): Label of the group.
    step (int): How many steps the writer of rates had made.
    what (str): The kind of change: "learn_rate", "params", "options", "group" (added or removed), or "taken_out" (a
        group that its owner keeps is gone).
    expected, found (Any): The values before and after the change.
    """

    def __init__(
        self, fact: str, advice: str, *, group: str, step: int, what: str, expected: typing.Any, found: typing.Any
    ):
        super().__init__(f"{fact} {advice}")
        self.fact = fact
        self.advice = advice
        self.group = group
        self.step = step
        self.what = what
        self.expected = expected
        self.found = found
        self.others: list[LearnRateIntegrityError] = []  # other changes found by the same check

    @property
    def can_be_undone(self) -> bool:
        """Whether the controller can undo the change. If not, it accepts the group as it is."""
        return self.what in ("learn_rate", "taken_out")


class TorchOptWarning(UserWarning):
    """Base of all warnings that the package gives."""


class AuxVarWarning(TorchOptWarning, RuntimeWarning):
    """There are no auxiliary variables to send yet."""


class ConfigWarning(TorchOptWarning):
    """A setting that has no effect, because another one overrides it."""


class CheckpointWarning(TorchOptWarning):
    """A checkpoint is damaged, from another config, or could not be written."""


class GradSpikeWarning(TorchOptWarning):
    """The gradients of an update were far larger than usual; what was done about it."""


class GrowthWarning(TorchOptWarning):
    """A param grew, and its state is of a kind that can't grow with it."""


class HostWarning(TorchOptWarning):
    """The package does not know the installed version of spaCy or thinc, or other code has put its functions back."""


class LearnRateWarning(TorchOptWarning):
    """Other code wrote to a param group; what was done about it."""


class NonFiniteGradWarning(TorchOptWarning):
    """An update was skipped because a gradient was not finite."""


class PipelineWarning(TorchOptWarning):
    """A pipeline has nothing to train."""


class PrecisionWarning(TorchOptWarning):
    """A precision that is slow on this machine, or params of half precision that lose small updates."""


class RollbackWarning(TorchOptWarning):
    """The training diverged, and went back to a checkpoint."""


class ScheduleWarning(TorchOptWarning):
    """A schedule ended; its last value is kept."""
