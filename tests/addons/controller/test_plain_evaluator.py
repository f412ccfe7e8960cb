"""Random definitions over random events. Oracle: ten lines of plain Python, which keep all values in lists and evaluate
rules by `eval`. The state goes through JSON at random moments.
"""

import json
import random
import statistics
from types import SimpleNamespace

import pytest

from thinc_torchopt.addons.controller.controller import TrainerController

from .kit import LOG, LOSS, NORMS, SCORES, definition, part, rule

PYTHON = {"mean": statistics.mean, "isnan": lambda x: x != x, "get": lambda x, key, default: x.get(key, default)}
OF = ["loss['per_word']", "norms['total']", "scores['f']", "get(scores, 'g', -1.0)"]
OF += ["loss['per_word'] * norms['total']"]
PARTS = [
    "{w}['mean'] > {x}",
    "{w}['median'] > {x}",
    "{w}['max'] - {w}['min'] > {x}",
    "{w}['last'] > {w}['first']",
    "mean({w}['values'][-2:]) < {x}",
    "{b}['evaluations_since'] >= {n}",
    "{b}['value'] < {x}",
    "{b}['steps_since'] > {n}",
    "fired['r0']['times'] >= {n}",
    "loss['per_word'] > {x}",
    "get(scores, 'g', -1.0) < {x}",
]


def random_definition(rng):
    metrics = [LOSS, NORMS, SCORES]
    for i in range(2):
        by = rng.choice(["steps", "evaluations"])
        window = {"of": rng.choice(OF), "size": rng.randint(1, 4), "by": by}
        metrics.append(part(f"w{i}", "Window", **window))
        best = {"of": rng.choice(OF), "mode": rng.choice(["min", "max"]), "min_delta": rng.choice([0.0, 0.2]), "by": by}
        metrics.append(part(f"b{i}", "Best", **best))
    rules = []
    for i in range(3):
        values = {"w": f"w{rng.randint(0, 1)}", "b": f"b{rng.randint(0, 1)}", "x": round(rng.random(), 2)}
        parts = [rng.choice(PARTS).format(**values, n=rng.randint(1, 4)) for _ in range(rng.randint(1, 2))]
        more = {"cooldown": rng.choice([0, 0, 3])}
        if rng.random() < 0.5:
            mode = rng.choice(["reset_on_failure", "no_reset_on_failure"])
            more["patience"] = {"patience_threshold": rng.randint(0, 2), "mode": mode}
        if rng.random() < 0.3:
            more["max_firings"] = rng.randint(1, 3)
        event = rng.choice(["on_step_end", "on_evaluate"])
        rules.append(rule(f"r{i}", event, rng.choice([" and ", " or "]).join(parts), LOG, **more))
    return definition(*rules, metrics=metrics)


def random_events(rng):
    for step in range(rng.randint(5, 30)):
        yield "on_step_end", {"step": step, "loss": rng.random(), "norm": rng.random()}
        if rng.random() < 0.4:
            scores = {"f": round(rng.random(), 1)} | ({"g": rng.random()} if rng.random() < 0.5 else {})
            yield "on_evaluate", {"step": step, "scores": scores}


class Plain:
    """The same by hand."""

    def __init__(self, definition):
        self.metrics, self.rules = definition["controller_metrics"][3:], definition["controllers"]
        self.values, self.lists, self.bests = {}, {}, {}
        self.states = {rule["name"]: SimpleNamespace(times=0, last=None, held=0) for rule in self.rules}

    def of(self, text):
        try:
            return eval(text, PYTHON | self.values)
        except (NameError, KeyError, TypeError):  # no value yet
            return None

    def tell(self, event, step, loss=None, norm=None, scores=None):
        if event == "on_step_end":
            self.values |= {"loss": {"per_word": loss}, "norms": {"total": norm}}
        else:
            self.values["scores"] = scores
        for metric in self.metrics:
            name, given = metric["name"], metric["arguments"]
            is_new = event == {"steps": "on_step_end", "evaluations": "on_evaluate"}[given["by"]]
            value = self.of(given["of"]) if is_new else None
            if metric["class"] == "Window" and value is not None:
                window = self.lists[name] = [*self.lists.get(name, []), value][-given["size"] :]
                if len(window) == given["size"]:
                    found = {"values": window, "first": window[0], "last": window[-1]}
                    found |= {"min": min(window), "max": max(window), "mean": statistics.mean(window)}
                    self.values[name] = found | {"median": statistics.median(window)}
            elif metric["class"] == "Best":
                best, at, since = self.bests.get(name, (None, None, 0))
                since += event == "on_evaluate" and at != step
                sign = -1 if given["mode"] == "min" else 1
                if value is not None and (best is None or sign * value > sign * best + given["min_delta"]):
                    best, at, since = value, step, 0
                self.bests[name] = best, at, since
                if best is not None:
                    self.values[name] = {"value": best, "evaluations_since": since, "steps_since": step - at}
        return [rule["name"] for rule in self.rules if event in rule["triggers"] and self.fires(rule, step)]

    def fires(self, rule, step):
        state = self.states[rule["name"]]
        if state.times >= rule.get("max_firings", 99) or (
            rule["cooldown"] and state.last is not None and step - state.last <= rule["cooldown"]
        ):
            return False
        self.values["fired"] = {name: {"times": one.times} for name, one in self.states.items()}
        holds = self.of(rule["rule"])
        patience = rule.get("patience", {"patience_threshold": 0, "mode": ""})
        if holds is None:
            return False
        if not holds:
            state.held *= patience["mode"] != "reset_on_failure"
            return False
        state.held += 1
        if state.held <= patience["patience_threshold"]:
            return False
        state.times, state.last, state.held = state.times + 1, step, 0
        return True


@pytest.mark.parametrize("seed", [*range(60), *(pytest.param(n, marks=pytest.mark.slow) for n in range(60, 200))])
def test_plain_evaluator_agrees(seed):
    rng = random.Random(seed)
    definition = random_definition(rng)
    plain, controller = Plain(definition), TrainerController(definition)
    for event, payload in random_events(rng):
        told = {"step": payload["step"]}
        if event == "on_step_end":
            told |= {"losses": {"ner": payload["loss"]}, "batch_words": 1, "grad_norm": payload["norm"]}
        else:
            told |= {"scores": payload["scores"]}
        found = [firing.controller for firing in controller.decide(event, **told)]
        assert found == plain.tell(event, **payload), (payload, definition)
        if rng.random() < 0.2:
            state = json.loads(json.dumps(controller.state_dict()))
            controller = TrainerController(definition)
            controller.load_state_dict(state)


def test_plain_evaluator_sees_firings():
    """The random definitions do fire, by each part."""
    fired = set()
    for seed in range(60):
        rng = random.Random(seed)
        definition = random_definition(rng)
        plain = Plain(definition)
        for event, payload in random_events(rng):
            fired |= {(seed, name) for name in plain.tell(event, **payload)}
    assert len(fired) > 60
