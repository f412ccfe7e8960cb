"""Usual learning rates of algorithms: in their papers, in torch, and in known models.

An algorithm whose step follows the size of the gradients (SGD) has no scale of its own; those that divide by it (Adam)
move each number by about the rate. Rates far above the range hardly ever train anything. Algorithms that are not listed
have no known range.
"""

from __future__ import annotations

from typing import NamedTuple

# A rate is far above the range if it exceeds the upper end this many times; far below, likewise.
FAR = 10.0


class UsualRates(NamedTuple):
    """lowest, highest (float): The usual range of the highest rate of a training.
    source (str): Where the range is from.
    is_factor (bool): The algorithm finds its rate itself, and multiplies it by this one.
    """

    lowest: float
    highest: float
    source: str
    is_factor: bool = False


_ADAM = UsualRates(1e-5, 5e-3, "Kingma and Ba 2014 and thinc use 0.001, BERT 0.00002 to 0.00005")
_PRETRAINED = UsualRates(1e-6, 1e-4, "Devlin et al. 2018 use 0.00002 to 0.00005 for BERT")
_SIGN = UsualRates(1e-6, 1e-3, "Chen et al. 2023: a third to a tenth of Adam's, as each number moves by the whole rate")
_NONE_NEEDED = UsualRates(0.1, 1.0, "its authors: 1, as it finds the rate itself, and multiplies it by this one", True)

# By their names in the config.
_USUAL = {
    **dict.fromkeys(("Adam", "AdamW", "Adamax", "NAdam", "RAdam"), _ADAM),
    "Adadelta": UsualRates(0.1, 1.0, "Zeiler 2012 and torch use 1: its steps have the scale of the weights"),
    "Adafactor": UsualRates(1e-4, 1e-2, "Shazeer and Stern 2018 and torch use 0.01"),
    "Adagrad": UsualRates(1e-3, 0.1, "torch uses 0.01"),
    "ASGD": UsualRates(1e-3, 0.1, "torch uses 0.01"),
    "Muon": UsualRates(1e-4, 0.05, "Jordan 2024 uses 0.02, torch 0.001"),
    "RMSprop": UsualRates(1e-4, 1e-2, "Hinton 2012 uses 0.001, torch 0.01"),
    "Rprop": UsualRates(1e-4, 0.1, "Riedmiller and Braun 1993 use 0.1 for the first step, torch 0.01"),
    "SGD": UsualRates(1e-3, 1.0, "He et al. 2015 use 0.1 with a momentum of 0.9, torch 0.001"),
}
_OF_PYTORCH_OPTIMIZER = {
    **dict.fromkeys(("lion", "tiger", "signsgd"), _SIGN),
    **dict.fromkeys(("prodigy", "dadaptadam", "dadaptadagrad", "dadaptsgd", "dadaptadan", "dadaptlion"), _NONE_NEEDED),
    **dict.fromkeys(("adabelief", "adamp", "adan", "lamb", "ranger", "ranger21", "stableadamw"), _ADAM),
    "schedulefreeadamw": UsualRates(1e-5, 0.05, "Defazio et al. 2024: Adam's, or up to ten times that"),
}


def usual_rates(label: str, *, pretrained: bool = False) -> UsualRates | None:
    """The usual rates of an algorithm. None: unknown.

    label (str): Its name in the config: "torch.AdamW.v1", "thinc-torchopt.Adam.v1", or "pytorch-optimizer.create.v1
        (lion)".
    pretrained (bool): For a pretrained transformer, which higher rates destroy.
    """
    library, _, name = label.partition(".")
    if library == "pytorch-optimizer":
        found = _OF_PYTORCH_OPTIMIZER.get(name.partition("(")[2].rstrip(")").lower())
    else:
        found = _USUAL.get(name.removesuffix(".v1"))
    return _PRETRAINED if pretrained and found is _ADAM else found
