"""The state of an optimizer by lasting names, and folders of tensors that are either complete or absent.

Open saved_state.py first: the parts of a saved state, and how it is fitted to a changed pipeline. by_name.py collects
and restores it; preserve.py does the same for a bare torch loop, files.py and trees.py write and read it.
"""

from . import by_name, saved_state
from .files import (
    FULL,
    MANIFEST,
    TENSORS,
    VALUES,
    advice_on,
    check_folder,
    clear_leftovers,
    is_one_of,
    read_folder,
    replacing,
    write_folder,
    write_parts,
    write_text,
)
from .preserve import StateMapping, preserve_optimizer_state
from .saved_state import VERSION, WHAT, SavedState
from .trees import copies_in_main_memory, flatten, in_main_memory
