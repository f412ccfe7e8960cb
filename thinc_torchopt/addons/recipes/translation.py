"""Translate thinc's optimizers to torch's in the text of a config, with the names of their settings."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from confection import Config
from spacy.language import DEFAULT_CONFIG
from spacy.util import registry

from ...core.errors import ConfigError
from .config_text import Raw, SectionText, SettingText, moved_value

THINC = ("Adam.v1", "RAdam.v1", "SGD.v1")
TORCH = "thinc-torchopt.TorchOptimizer.v1"
ADAMW = "torch.AdamW.v1"
PREFIX = "thinc-torchopt."
_OF_ADAMW = ("@torch_optimizers", "betas", "eps", "weight_decay")
_CLIP_BY = {
    "global": 'One norm over all gradients. As thinc: "param", each tensor by its own norm.',
    "param": "Each tensor by its own norm, as thinc does.",
}


@dataclass
class Translation:
    """The optimizer of a config while it is being rewritten.

    section (SectionText): The text of [training.optimizer], which is changed.
    config (Config): The whole config before, interpolated.

    Public: `values` (the settings as spaCy fills them in), `kind` (@optimizers), `changes` and `warnings` (what was
    done, in words).
    """

    section: SectionText
    config: Config
    changes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        given = dict(self.config.get("training", {}).get("optimizer", {}))
        # spaCy fills in the defaults of its own Adam.v1, and of no other optimizer.
        default = Config({"optimizer": DEFAULT_CONFIG["training"]["optimizer"]})
        self.values: dict[str, Any] = default.merge({"optimizer": given})["optimizer"]
        self.kind: str = self.values["@optimizers"]

    @property
    def max_steps(self) -> int:
        """The last step of the training. 0: no limit."""
        return int(self.config.get("training", {}).get("max_steps", DEFAULT_CONFIG["training"]["max_steps"]) or 0)

    @property
    def _arguments(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(registry.get("optimizers", self.kind)).parameters

    def check_thinc(self) -> None:
        """RAISES (ConfigError): It has settings that thinc's optimizer does not have."""
        unknown = sorted(set(self.values) - set(self._arguments) - {"@optimizers"})
        if unknown:
            raise ConfigError(
                f'Can\'t rewrite [training.optimizer]: expected settings of "{self.kind}" '
                f"({', '.join(self._arguments)}), found "
                f"{', '.join(unknown)}. Correct or remove the unknown ones."
            )

    def fill_in(self) -> None:
        """Write the settings that spaCy fills in for Adam.v1 only: another optimizer would not get them."""
        missing = [key for key in self.values if key not in self.section and key != "@optimizers"]
        missing.sort(key="L2_is_weight_decay".__eq__)  # for torch it goes, and a comment above it would stay
        for i, key in enumerate(missing):
            says = ["spaCy fills these in for its Adam.v1, and for no other optimizer:"] if i == 0 else []
            self.section.put(key, self.values[key], *says)
        if missing:
            self.changes.append(
                f"Added {', '.join(missing)}: spaCy fills them in for Adam.v1, and for no other optimizer."
            )

    def value(self, key: str) -> Any:
        """A setting of the original optimizer, or its default."""
        return self.values[key] if key in self.values else self._arguments[key].default

    def set_optimizer(self, name: str, *comments: str) -> None:
        """Write another @optimizers, with comments above it."""
        rest = dict(self.section.settings)
        known = rest.pop("@optimizers", None)
        self.section.settings.clear()
        lines = tuple(f"# {line}\n" for line in comments)
        self.section.settings["@optimizers"] = SettingText(
            "@optimizers", f'"{name}"', (*(known.above if known else ()), *lines)
        )
        self.section.settings |= rest

    def as_torch(
        self, *, clip_by: Literal["global", "param"] = "global", kept: str = "learn_rate and grad_clip are"
    ) -> None:
        """Change to TorchOptimizer, with the torch optimizer nearest to thinc's."""
        if self.kind == TORCH:
            return
        kind, section = self.kind.removeprefix(PREFIX), self.section
        is_decay = self.value("L2_is_weight_decay")
        name = {
            "Adam.v1": ADAMW if is_decay else "torch.Adam.v1",
            "RAdam.v1": "torch.RAdam.v1",
            "SGD.v1": "torch.SGD.v1",
        }[kind]
        self.set_optimizer(TORCH)
        algorithm = SectionText()
        algorithm.put("@torch_optimizers", name)
        if kind != "SGD.v1":
            self._move_betas(algorithm)
            self._move("eps", algorithm, "eps")
        self._move("L2", algorithm, "weight_decay")
        if kind == "RAdam.v1":
            algorithm.put("decoupled_weight_decay", bool(is_decay))
        section.drop("L2_is_weight_decay")
        if "use_averages" not in section:  # thinc and TorchOptimizer have different defaults
            section.put("use_averages", bool(self.value("use_averages")))
        if self.value("grad_clip") != 0:
            section.put("clip_by", clip_by, _CLIP_BY[clip_by])
        section.sections = {"algorithm": algorithm, **section.sections}
        self.changes.append(f'@optimizers: "{self.kind}" is "{TORCH}" now; {kept} carried over.')
        if self.value("grad_clip") != 0:
            self.changes.append(
                'clip_by = "global": one norm over the gradients of the whole pipeline. thinc clips tensor by tensor.'
                if clip_by == "global"
                else 'clip_by = "param": each tensor is clipped by its own norm, as thinc does.'
            )

    def _move_betas(self, algorithm: SectionText) -> None:
        """Make torch's list `betas` of beta1 and beta2; or a section, if one of them is a schedule."""
        found = {key: self.section.pop(key) for key in ("beta1", "beta2")}
        comments = [
            line for entry in found.values() if isinstance(entry, SettingText) for line in entry.above if line.strip()
        ]
        values = {
            key: json.dumps(self.value(key)) if entry is None else moved_value(entry.value, self.value(key))
            for key, entry in found.items()
            if not isinstance(entry, SectionText)
        }
        if len(values) == 2 and all(not isinstance(self.value(key), (dict, list)) for key in values):
            algorithm.put("betas", Raw(f"[{values['beta1']}, {values['beta2']}]"))
            algorithm.settings["betas"] = SettingText("betas", algorithm.settings["betas"].value, tuple(comments))
            return
        betas = algorithm.section("betas")
        for key, entry in found.items():
            if isinstance(entry, SectionText):
                betas.add(key, entry)
            else:
                betas.settings[key] = SettingText(key, values[key], () if entry is None else entry.above)

    def _move(self, key: str, algorithm: SectionText, name: str) -> None:
        """Move a setting to the algorithm's section, under its name there."""
        entry = self.section.pop(key)
        if entry is None:
            algorithm.put(name, self.value(key))
        elif isinstance(entry, SectionText):
            algorithm.add(name, entry)
        else:
            algorithm.add(name, entry.changed(moved_value(entry.value, self.value(key))))

    def use_adamw(self) -> None:
        """Change to AdamW, with the options that mean the same there."""
        old = self.section.sections.get("algorithm")
        if old is None:
            raise ConfigError(
                "Can't use the recipe: expected the section [training.optimizer.algorithm], found none. Add it, with "
                f'@torch_optimizers = "{ADAMW}".'
            )
        before = self.algorithm_name(old)
        if before == ADAMW:
            return
        old.put("@torch_optimizers", ADAMW)
        for key in [key for key in (*old.settings, *old.sections) if key not in _OF_ADAMW]:
            old.drop(key)
            if self.kind == TORCH:
                self.warnings.append(
                    f"'{key}' of {before} in [training.optimizer.algorithm] was removed: {ADAMW} does not have it."
                )
        if self.kind == TORCH:
            self.changes.append(f'@torch_optimizers: "{before}" is "{ADAMW}" now.')
            for block, given in self.values.get("param_groups", {}).items():
                if given.get("algorithm"):
                    label = given["algorithm"]["@torch_optimizers"]
                    self.changes.append(f"[training.optimizer.param_groups.{block}] keeps its own algorithm, {label}.")

    def algorithm_name(self, section: SectionText) -> str:
        """The @torch_optimizers of a section."""
        if self.kind == TORCH:
            return str(self.values.get("algorithm", {}).get("@torch_optimizers"))
        return section.settings["@torch_optimizers"].value.strip('"')

    def tell_decay(self) -> None:
        """Say what became of thinc's L2."""
        L2 = self.value("L2")
        shown = (
            "its schedule" if isinstance(L2, (dict, list)) else f"{L2:g}" if isinstance(L2, (int, float)) else str(L2)
        )
        is_decay = self.value("L2_is_weight_decay")
        if is_decay or L2 == 0:
            self.changes.append(
                f"weight_decay: {shown}, from L2. Both take learn_rate x weight_decay off the weights at each step."
            )
        else:
            self.warnings.append(
                f"L2 = {shown} was a part of the gradients (L2_is_weight_decay = false); as weight_decay of {ADAMW} it "
                "is subtracted from the weights, which has another strength. Try other values, 0.01 for example."
            )

    def tell_rate(self) -> None:
        """Say whether the rate fits."""
        if self.kind.endswith("SGD.v1"):
            self.warnings.append(
                f"learn_rate was chosen for SGD; {ADAMW} mostly wants a lower one, 0.001 for example. Find one: spacy "
                "torchopt find-lr."
            )
