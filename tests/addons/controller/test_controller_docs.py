"""docs/controller.md: each definition in it fires when it should, and stays quiet when not; each list is complete."""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from unittest.mock import Mock

import pytest
import simpleeval
import srsly

from thinc_torchopt.addons.controller import evaluator, rules
from thinc_torchopt.addons.controller.controller import TrainerController
from thinc_torchopt.addons.controller.evaluator import FUNCTIONS
from thinc_torchopt.addons.controller.operations import RunHandle
from thinc_torchopt.core.optimizer import TorchOptimizer
from thinc_torchopt.loop.events import Control

from ...conftest import CONFIGS

PAGE = (CONFIGS.parent / "docs" / "controller.md").read_text()
BLOCKS = [srsly.yaml_loads(text) for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)]


def steps(*losses):
    return [("on_step_end", {"losses": {"ner": loss}, "batch_words": 10}) for loss in losses]


def scores(*values, step=2000):
    return [("on_evaluate", {"scores": {"ents_f": value}, "score": value, "step": step}) for value in values]


def norm(value):
    return [("on_step_end", {"grad_norm": value})]


def norms(values):
    return [event for value in values for event in norm(value)]


def dev_loss(*per_word):
    """Each is asked for with what the metric's definition says."""
    return [
        (
            "on_evaluate",
            {
                "dev_losses": lambda at_most, loss=loss: {
                    "losses": {"ner": loss * (at_most or 9)},
                    "words": at_most or 9,
                    "examples": 9,
                }
            },
        )
        for loss in per_word
    ]


# Of each controller: events at whose end it fires, and events on which it does not.
RUNS = {
    "stop-at-loss": (steps(5.0, 0.4), steps(5.0, 0.6)),
    "stop-early": (dev_loss(0.5, 0.5, 0.6, 0.7, 0.5, 0.5), dev_loss(0.5, 0.5, 0.6, 0.7, 0.4, 0.5)),
    "save-when-gradients-double": (norms(50 * [1.0] + [3.0]), norms(200 * [1.0, 3.0])),
    "tell-of-errors": (
        [("on_exception", {"error_type": "RuntimeError", "error_text": "no memory"})],
        [("on_train_end", {}), ("on_exception", {"error_type": "KeyboardInterrupt", "error_text": ""})],
    ),
    "cut-on-plateau": (scores(0.5, 0.4, 0.4, 0.4), scores(0.5, 0.4, 0.4, 0.6, 0.4)),
}


def fired(controller, events):
    """Which controllers fire at each event."""
    handle = {"control": Control(), "run": RunHandle(Mock(spec=TorchOptimizer))}
    found = []
    for step, (event, payload) in enumerate(events):
        found.append(
            {firing.controller for firing in controller.on_event(event, **{"step": step, **payload}, **handle)}
        )
    return found


def test_docs_every_definition_has_a_run():
    assert {spec["name"] for block in BLOCKS for spec in block["controllers"]} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_docs_definitions_fire_and_stay_quiet(name):
    [block] = [block for block in BLOCKS if name in [spec["name"] for spec in block["controllers"]]]
    fires, stays_quiet = (fired(TrainerController(block), events) for events in RUNS[name])
    assert name in fires[-1] and not any(name in names for names in fires[:-1])
    assert not any(name in names for names in stays_quiet)


def words_of(heading):
    return set(re.findall(r"`(\w+)`", PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]))


def test_docs_name_all_functions():
    assert words_of("Rules") >= {name for name in FUNCTIONS if not name.startswith("math_")}


def test_docs_limits_are_true():
    [limits] = re.findall(r"Its limits are (.*?)\s+in\s+all\.", PAGE, flags=re.DOTALL)
    assert [int(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\d", limits)] == [
        *(rules.MAX_TEXT, rules.MAX_NODES, rules.MAX_DEPTH, simpleeval.MAX_POWER, evaluator.MAX_BITS),
        *(simpleeval.MAX_COMPREHENSION_LENGTH, simpleeval.MAX_STRING_LENGTH, evaluator.MAX_WORK),
    ]


@contextmanager
def server(status):
    """A web server. RETURNS (tuple): Its address, and what it got."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args):
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/hook?token=secret", got
    finally:
        http.shutdown()
        http.server_close()


def test_docs_message_to_a_web_address(monkeypatch, caplog):
    """As the page says: its own operation, in its own definition for `on_exception`. A failure harms nothing."""
    [text] = [text for text in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if "Notify" in text]
    exec(text, {})
    [block] = [block for block in BLOCKS if block["controllers"][0]["name"] == "tell-of-errors"]
    hook = srsly.yaml_loads(re.search(r"Use `(\{name:\s+hook.*?\})` and", PAGE)[1])
    rule = {**block["controllers"][0], "operations": ["hook.should_notify"]}
    definition = {**block, "operations": [hook], "controllers": [rule]}
    error = {"step": 3, "error_type": "RuntimeError", "error_text": "no memory"}
    for status in (200, 500):
        with server(status) as (url, got):
            monkeypatch.setenv(hook["arguments"]["url_from"], url)
            controller = TrainerController(definition)
            controller.on_event("on_exception", **error)
            assert got == []  # without a control
            controller.on_event("on_exception", **error, control=Control())
            monkeypatch.setenv("RANK", "1")
            controller.on_event("on_exception", **error, control=Control())
            monkeypatch.delenv("RANK")
        [message] = got
        assert message["error"] == "no memory" and "hook.should_notify on on_exception at step 3" in message["text"]
        assert ("HTTPError" in caplog.text) == (status == 500)
    controller.on_event("on_exception", **error, control=Control())  # nobody listens any more
    assert "URLError" in caplog.text and "secret" not in caplog.text
