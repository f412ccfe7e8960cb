"""A recurrent layer that is trained online, with eligibility traces instead of back-propagation through time.

cells.py has the cells and the terms; eligibility.py the traces, adjoint.py the same gradient without traces;
gradients.py chooses between them: `eligibility_gradients`. online_rnn.py is the layer of thinc and spaCy, made of
nodes (node.py); online_trainer.py trains it on streams.
"""

from typing import Final

from .cells import Cell
from .eligibility import ParamDimTraces
from .gradients import eligibility_gradients
from .node import describe
from .online_rnn import OnlineRNN, OnlineRNNEncoder, copy_torch_weights
from .online_trainer import OnlineTrainer
from .relations import Dense, Elementwise

STABILITY: Final = "experimental"
