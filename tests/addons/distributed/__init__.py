from ...doubles import install_as_parent

install_as_parent()  # worker.py is about to import thinc
