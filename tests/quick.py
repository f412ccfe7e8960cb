"""What makes many small trainings in one process, or in its forks, quick."""

import gc
from functools import cache

import catalogue
from srsly import msgpack


def look_up_once() -> None:
    """For each message that it reads or writes, and for each function of a config, catalogue looks through the entry
    points of all installed packages. In trainings as small as those of the tests that would be half of the time.
    """
    points = catalogue.AVAILABLE_ENTRY_POINTS
    if hasattr(points, "select"):
        catalogue.AVAILABLE_ENTRY_POINTS = {group: list(points.select(group=group)) for group in points.groups}
    for coders in (msgpack.msgpack_encoders, msgpack.msgpack_decoders):
        if not hasattr(coders.get_all, "cache_info"):
            coders.get_all = cache(coders.get_all)


def forget_as_garbage() -> None:
    """All that is imported by now is never garbage: it takes long to look through it again, and to copy it."""
    gc.collect()
    gc.freeze()
