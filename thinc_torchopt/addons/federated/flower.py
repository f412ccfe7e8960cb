"""The imports from Flower, the library `flwr`: the extra `federated`."""

from ...core.compat import check_flwr

check_flwr()

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

__all__ = [
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "Grid",
    "Message",
    "MessageType",
    "RecordDict",
    "ServerApp",
]
