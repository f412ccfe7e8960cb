"""Show the status of a federated training: `python -m thinc_torchopt.modular.federated training`.

Prints its status, and the score of each round. Exit code 0: it has finished; 1: it failed, was killed, or does not
exist; 2: it is running, or that is unknown.
"""

import sys
from pathlib import Path

from ...errors import StateError
from .results import read_result

_EXITS = {"finished": 0, "failed": 1, "killed": 1, "running": 2, "unknown": 2}


def main(arguments: list[str]) -> int:
    """RETURNS (int): The exit code."""
    if len(arguments) != 1:
        print("usage: python -m thinc_torchopt.modular.federated OUTPUT", file=sys.stderr)
        return 1
    try:
        found = read_result(Path(arguments[0]))
    except StateError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{found['status']}{': ' if found['error'] else ''}{found['error'] or ''}")
    for row in found["rounds"]:
        print(f"round {row['round']}: {'no score' if row['score'] is None else row['score']}")
    return _EXITS[found["status"]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
