__title__ = "thinc-torchopt"
__version__ = "0.1.0"
