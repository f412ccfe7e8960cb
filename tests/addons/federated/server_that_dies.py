"""A server with its clients in one process, which kills itself as kill -9 does, at a moment of a round. Then only files
are left: those of the server, and those of the clients.

    python -m tests.addons.federated.server_that_dies FOLDER TEXTS MOMENT ROUND

MOMENT "never" runs to the end. FOLDER has the configs, as `test_rounds.Run` writes them.
"""

import os
import signal
import sys
from pathlib import Path

from thinc_torchopt.addons.federated import results, server
from thinc_torchopt.addons.federated.server_step import ServerStep
from thinc_torchopt.core.state import files

from .grid import LocalGrid
from .pipelines import SIZES, paths

MOMENTS = ("before the first reply", "between replies", "while aggregating", "while saving", "after the round")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder, texts, moment, in_round):
    replies, now = [], [0]

    def spoil(kind, name, reply):
        if kind == "train" and now[0] == in_round:
            replies.append(name)
            if (moment, len(replies)) in (("before the first reply", 1), ("between replies", 2)):
                die()
        return reply

    begin, apply, put, end = (
        results.Results.begin_round,
        ServerStep.apply,
        files._put_in_place,
        results.Results.end_round,
    )

    def begin_round(self):
        row = begin(self)
        now[0] = row.round
        return row

    def apply_and_die(self, *args):
        if (moment, in_round) == ("while aggregating", now[0]):
            die()
        return apply(self, *args)

    def put_in_place(new, path):
        if (moment, in_round) == ("while saving", now[0]) and path.name == saved:
            die()
        put(new, path)

    def end_round(self, *args):
        end(self, *args)
        if (moment, in_round) == ("after the round", now[0]):
            die()

    # Which of the files that a round writes is not in place yet.
    saved = ("model-last", "model-best", "state")[in_round % 3]
    results.Results.begin_round, ServerStep.apply = begin_round, apply_and_die
    files._put_in_place, results.Results.end_round = put_in_place, end_round
    clients = {name: {"name": name, "config": str(folder / f"{name}.cfg"), **paths(texts, name)} for name in SIZES}
    settings = {"config": str(folder / "server.cfg"), "output": str(folder / "out")}
    server.train(LocalGrid(clients, spoil), {**settings, "paths.labels": paths(texts, "north")["paths.labels"]})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
