"""A recurrent layer that is trained online, with eligibility traces instead of back-propagation through time.

cells.py has the cells and the words; eligibility.py the traces, adjoint.py the same gradient without them;
gradients.py puts them together: `eligibility_gradients`.
"""

from .cells import CELLS, Cell
from .eligibility import ParamDimTraces
from .gradients import eligibility_gradients
from .relations import Dense, Elementwise

__all__ = ["CELLS", "Cell", "Dense", "Elementwise", "ParamDimTraces", "eligibility_gradients"]
