"""Why tests are skipped, and what runs them. A session of pytest ends with a table of that, and fails if a test was
skipped for a reason that is not in REASONS.

    TESTS_NEED='torchao|flwr'       a regular expression: reasons that begin so fail the session, too
    TESTS_RAN=folder                each session leaves there which tests it ran
    python -m tests.skips folder [PLACE ...]
                                    the table of those that none of these sessions ran; fails if a PLACE should have
"""

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path

# What a reason begins with, and what runs such tests.
REASONS = {
    "no CUDA device|runs with --device cuda|NCCL needs a GPU": "make test-gpu",
    "runs with --device|the double ": "tests/doubles/test_marked.py",
    "(spacy-)?transformers is not installed|the package with MiniLM's weights|torchao is not": "make test-transformers",
    "spacy-curated-transformers is not installed": "make test-curated",
    "flwr is not installed": "make test-federated",
    "(matplotlib|nbclient|opacus|optuna|pytorch-optimizer|tensorboard) is not": "make test",
    "(spacy-transformers|torchao) is (here|installed)": "make test",
    r"(the corpora in )?\.\./shared": "the folder ../shared",
    "this (torch has no|confection refuses)|the reference is written with": "the versions in constraints.txt",
    "there is a GPU|a torch with CUDA asks for the driver|spaCy's beam can't": "a machine without a GPU",
    "only root can|can't mount|no (network namespaces|virtual cables)": "root, on Linux",
    "Windows|no limits on Windows|this system has no fork|processes can't be forked|bash is not": "Linux",
    "root may read|interfaces are looked up|elsewhere the most memory|there is no `strip`": "Linux",
    "this CPU has no LSTM": "a CPU with AVX-512",
    "declearn .* can't be fetched": "a network",
    "Python did not use the id again": "another attempt",
}


def what_runs(reason):
    """Empty: the reason is not known."""
    return next((place for known, place in REASONS.items() if re.match(known, reason)), "")


def table(reasons):
    """Lines that count them, the most frequent first."""
    return [f"{n:5}  {reason}: {what_runs(reason) or '?'}" for reason, n in Counter(reasons).most_common()]


def pytest_sessionfinish(session):
    if (reporter := session.config.pluginmanager.get_plugin("terminalreporter")) is None:
        return  # in a worker of xdist: the first process has its reports
    skipped = {report.nodeid: reason_of(report) for report in reporter.stats.get("skipped", ())}
    if folder := os.environ.get("TESTS_RAN"):
        ran = [report.nodeid for report in reporter.stats.get("passed", ())]
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps([skipped, ran]))
    if skipped:
        reporter.ensure_newline()
        reporter.write_sep("=", "skipped tests, and what runs them")
        reporter.write_line("\n".join(table(skipped.values())))
    needed = os.environ.get("TESTS_NEED", "(?!)")
    for test, reason in skipped.items():
        if not what_runs(reason) or re.match(needed, reason):
            reporter.write_line(f"FAILED {test}: expected a reason of tests/skips.py or a run, found '{reason}'")
            session.exitstatus = session.exitstatus or 1


def reason_of(report):
    return report.longrepr[2].removeprefix("Skipped: ")


def main(folder, *places):
    sessions = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    ran = {name for _, passed in sessions for test in passed for name in (test, test.partition("::")[0])}
    nowhere = {test: reason for skipped, _ in sessions for test, reason in skipped.items() if test not in ran}
    print("Tests that none of these sessions ran, and what runs them", *table(nowhere.values()), sep="\n")
    if missed := [test for test, reason in nowhere.items() if what_runs(reason) in places]:
        sys.exit("\n".join([f"Expected that {', '.join(places)} run these tests, found that none did:", *missed]))


if __name__ == "__main__":
    main(*sys.argv[1:])
