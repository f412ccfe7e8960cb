"""For training loops of one's own: LearnRateController and Checkpoints.

controller.py writes the learning rates of any torch optimizers, by policies: policies.py; watchdog.py
counts its failures and slow work. checkpoints.py saves and resumes such a loop.
"""

from .controller import LearnRateController
