"""A double of a GPU: tests run under it where there is none."""


def install() -> None:
    """Have a GPU in this process. Before thinc is imported."""
    from . import cupy, torch_cuda

    torch_cuda.install()
    cupy.install()
