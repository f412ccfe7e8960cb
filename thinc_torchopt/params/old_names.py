"""States that were saved when components with odd names were called otherwise.

All characters that a name can't hold were `_` then, and names that became alike were told apart by a number, in the
order of the pipeline. Now they are escaped: see names.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spacy.language import Language

from .pipeline import all_names, components_with_model
from .spelling import clean, escape, unique

# Of a saved model, what goes by names of params or shims.
_BY_NAME = ("params", "modules", "attrs", "requires_grad")


def renamed_components(saved: Mapping[str, Any], nlp: Language) -> dict[str, str]:
    """The names that components have now, by those that they have in the state of an optimizer, if that is an old one.

    saved (Mapping): From `TorchOptimizer.state_dict`.
    """
    return _renamed(_components(saved["params"]), _components(all_names(nlp)), nlp)


def model_by_names_of_now(saved: Mapping[str, Any], nlp: Language) -> Mapping[str, Any]:
    """The state of a model, as `collect_model` gives it, by the names that components have now. What was given is not
    changed.
    """
    renamed = _renamed(_components(saved["attrs"]), {name for name, _ in components_with_model(nlp)}, nlp)
    if not renamed:
        return saved

    def rename(name: str) -> str:
        component, slash, rest = name.partition("/")
        return f"{renamed.get(component, component)}{slash}{rest}"

    return {
        **saved,
        **{kind: {rename(name): value for name, value in saved[kind].items()} for kind in _BY_NAME if kind in saved},
    }


def _renamed(found: set[str], now: set[str], nlp: Language) -> dict[str, str]:
    """New names by old ones. found (set[str]): The components in a state. now (set[str]): Those that it would have
    now.
    """
    taken: set[str] = set()
    new = {unique(clean(name), taken): escape(name) for name in nlp.component_names}
    is_old = not found <= now and found <= new.keys()
    return {name: new[name] for name in found if new[name] != name} if is_old else {}


def _components(names: Iterable[str]) -> set[str]:
    return {name.partition("/")[0] for name in names}
