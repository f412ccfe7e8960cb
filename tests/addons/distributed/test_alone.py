"""What holds without several processes: nothing of it is paid for, and commands say what is wrong before any starts."""

import ast
import os
import socket
import sys
import threading
import warnings
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from thinc.api import PyTorchWrapper
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

import thinc_torchopt
from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.distributed import group
from thinc_torchopt.addons.distributed.group import choose_interface, interface_to, wait_for_store
from thinc_torchopt.addons.distributed.ranks import Ranks, split_documents
from thinc_torchopt.addons.distributed.reduce import seed_of
from thinc_torchopt.cli._screen import show_errors
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import ConfigError, DistributedError

from ...conftest import CONFIGS
from ...forks import python
from ...models import toy_pipeline
from ...spacy_cli import refusal
from .conftest import free_port

PACKAGE = Path(thinc_torchopt.__file__).parent


def test_alone_nothing_is_imported():
    """A training in one process loads nothing of torch's launcher, and starts no process group. (torch itself imports
    much of torch.distributed.)
    """
    code = """if True:
        import sys, torch
        import spacy
        from spacy.training import Example
        from thinc_torchopt import Adam, train_while_improving
        nlp = spacy.blank("xx")
        nlp.add_pipe("textcat").add_label("A")
        nlp.get_pipe("textcat").add_label("B")
        batch = [Example.from_dict(nlp.make_doc("a b"), {"cats": {"A": 1.0, "B": 0.0}})]
        nlp.initialize(lambda: batch)
        settings = dict(dropout=0.1, eval_frequency=2, accumulate_gradient=1, patience=0, max_steps=0, exclude=[])
        settings |= dict(annotating_components=[], before_update=None)
        steps = train_while_improving(nlp, Adam(), [(0, batch)] * 3, lambda: (0.0, {}), **settings)
        launcher = {"torch.distributed.elastic", "torch.distributed.run"}
        print(len(list(steps)), launcher & set(sys.modules), torch.distributed.is_initialized())
    """
    run = python(code)
    assert run.stdout.strip() == "3 set() False", run.stdout + run.stderr


def test_alone_torch_distributed_is_imported_inside_functions():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.startswith("torch.distributed") for name in names), path


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are looked up on Linux")
def test_alone_interface_of_an_address(monkeypatch):
    """The loopback is for one machine alone, and a user's choice stays."""
    assert interface_to("127.0.0.1", 29500) == "lo"
    assert interface_to("no such host", 29500) is None
    for chosen, one_machine, expected in (("", True, "lo"), ("", False, ""), ("eth9", True, "eth9")):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", chosen)
        choose_interface("127.0.0.1", 29500, one_machine=one_machine)
        assert os.environ["GLOO_SOCKET_IFNAME"] == expected


@given(n=st.integers(0, 300), ranks=st.integers(1, 9), batch_size=st.integers(1, 120))
def test_alone_split_of_an_evaluation(n, ranks, batch_size):
    """Each document once; whole batches, wherever there are as many of them as ranks."""
    parts = split_documents(n, ranks, batch_size)
    assert sorted(i for part in parts for i in part) == list(range(n)) and len(parts) == ranks
    if n >= ranks * batch_size:
        of = {i: rank for rank, part in enumerate(parts) for i in part}
        assert all(of[i] == of[i - i % batch_size] for i in range(n))
    else:
        assert max(map(len, parts)) <= 2 * -(-n // ranks)


def test_alone_seeds_are_the_same_everywhere():
    """Numbers that a run of an earlier version had: a checkpoint goes on with them."""
    assert [seed_of(7, step, rank) for step, rank in ((0, None), (0, 0), (0, 1), (1, 0))] == SEEDS


SEEDS = [2243925461, 1939679297, 2618972457, 132767472]


@pytest.mark.parametrize("kind", [ValueError, DistributedError])
def test_alone_launcher_is_told_why(kind, monkeypatch, tmp_path, capsys):
    """As torch's launcher reads it. Errors of ours are shown without a traceback."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    launched = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in {**launched, "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}.items():
        monkeypatch.setenv(name, value)
    show_errors()
    try:
        raise kind("no\nhandle")
    except kind as error:
        sys.excepthook(kind, error, error.__traceback__)
    failure = ProcessFailure(local_rank=1, pid=1, exitcode=1, error_file=str(tmp_path / "error.json"))
    assert failure.message["message"] == f"{kind.__name__}: no\nhandle"
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1].endswith("handle") and ("Traceback" in shown) == (kind is ValueError)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ("cnn.cfg", ["--nnodes", 2], "Can't use '--rdzv-endpoint' in spacy torchopt train: expected host:port of the"),
        ("cnn.cfg", ["--nnodes", 2, "--rdzv-endpoint", "here:99999"], "with a port of 1 to 65535, found 'here:99999'"),
        ("cnn.cfg", ["--nnodes", 2, "--node-rank", 2], "expected a number below --nnodes, 2, found 2"),
        ("cnn.cfg", ["--nproc-per-node", 2, "--gpu-id", 1], "Can't use '--gpu-id' in spacy torchopt train: expected 0"),
        ("thinc.cfg", ["--nproc-per-node", 2], 'expected an optimizer of thinc-torchopt, found "Adam.v1"'),
        ("cnn.cfg", ["--training.optimizer.grad_clip", -1.0], "Can't set 'grad_clip' in [training.optimizer]"),
        ("cnn.cfg", ["--paths.train", "gone.spacy"], "[corpora.train]: there is no file or folder 'gone.spacy'"),
    ],
    ids=["endpoint", "port", "rank", "gpu", "optimizer", "setting", "corpus"],
)
def test_alone_command_is_checked_before_it_starts(config, options, message, tmp_path):
    (tmp_path / "cnn.cfg").write_text((CONFIGS / "cnn.cfg").read_text())
    (tmp_path / "thinc.cfg").write_text('[training]\n[training.optimizer]\n@optimizers = "Adam.v1"\n')
    assert message in refusal("torchopt", "train", tmp_path / config, *options)


@pytest.fixture
def listener():
    """A port where something else than torch's store listens: it does what it is told with each connection."""
    what_to_do, connections = [], []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connections.append(connection)
                    what_to_do[0](connection)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], what_to_do
        server.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.close()


def answer_as_a_web_server(connection):
    with suppress(OSError):
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("what", [lambda connection: None, socket.socket.close, answer_as_a_web_server])
def test_alone_another_program_at_the_port_is_no_store(what, listener, monkeypatch):
    """Not even torch's own timeout ends the wait for one that says nothing."""
    monkeypatch.setattr(group, "ANSWER_SECONDS", 0.3)
    port, what_to_do = listener
    what_to_do.append(what)
    with pytest.raises(DistributedError, match=f"Can't connect to rank 0 at 127.0.0.1:{port}: .* does not answer as"):
        wait_for_store("127.0.0.1", port)


def test_alone_a_store_may_come_late(monkeypatch):
    """After this rank has looked for it."""
    port = free_port()
    stores, looked = [], threading.Event()
    listens = group._listens

    def look(*where):
        looked.set()
        return listens(*where)

    monkeypatch.setattr(group, "_listens", look)

    def begin():
        looked.wait()
        stores.append(TCPStore("127.0.0.1", port, 2, True, timedelta(seconds=60), wait_for_workers=False))

    late = threading.Thread(target=begin)
    late.start()
    wait_for_store("127.0.0.1", port)
    assert looked.is_set()
    late.join()
    assert stores


def test_alone_nobody_at_the_port(monkeypatch):
    monkeypatch.setattr(group, "JOIN_SECONDS", 0.1)
    with pytest.raises(DistributedError, match=r"nothing accepted connections there for 0.1 seconds"):
        wait_for_store("127.0.0.1", free_port())


def test_alone_command_needs_a_free_port(listener, corpus):
    """On the machine whose launcher has the store."""
    port, what_to_do = listener
    what_to_do.append(socket.socket.close)
    several = ["--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}"]
    several += ["--paths.train", corpus["train"], "--paths.dev", corpus["dev"]]
    run = python(["torchopt", "train", CONFIGS / "cnn.cfg", *several], check=False)
    assert run.returncode == 1 and "Traceback" not in run.stderr
    said = " ".join(run.stderr.split())
    assert "Error: Training stopped: the launcher's store does not work" in said
    assert said.endswith("address already in use. Choose a port that is free here for --rdzv-endpoint.")


def test_alone_the_end_of_a_group_does_not_wait_for_itself(monkeypatch):
    """gloo's threads let go of tensors when a collective is over. A thread of Python's that never makes way shows
    whether they may need its lock at the end: with torch 2.6 that came within a few groups.
    """
    code = """if True:
        import os, socket, sys, torch
        from thinc_torchopt.addons.distributed.group import RankGroup
        from thinc_torchopt.distributed import Distributed
        sys.setswitchinterval(100)
        for _ in range(8):
            with socket.create_server(("127.0.0.1", 0)) as free:
                os.environ["MASTER_PORT"] = str(free.getsockname()[1])
            group = RankGroup.open(Distributed(), on_gpu=False)
            group.sum_(torch.zeros(1000))
            group.close()
        print("ended")
    """
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    assert python(code).stdout.strip() == "ended"


def test_alone_a_module_may_make_its_params_in_the_first_batch():
    """Each rank would draw other values for them."""
    nlp = toy_pipeline(["tagger"], shared=False)
    nlp.get_pipe("tagger").model = PyTorchWrapper(torch.nn.LazyLinear(3))
    with pytest.raises(ConfigError, match=r"component 'tagger' in several processes: a lazy torch module"):
        Ranks(nlp, TorchOptimizer(AdamW()), lambda: None, lambda: None)
