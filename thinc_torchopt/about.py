__title__ = "thinc-torchopt"
__version__ = "0.3.0"
