"""The imports from Flower, the library `flwr`: the extra `federated`."""

from ...core.compat import check_flwr

check_flwr()

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict  # noqa: E402
from flwr.app.exception import AppExitException  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp import strategy as strategies  # noqa: E402
from flwr.serverapp.strategy.fedopt import FedOpt  # noqa: E402

__all__ = [
    "AppExitException",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "FedOpt",
    "Grid",
    "Message",
    "MessageType",
    "MetricRecord",
    "RecordDict",
    "ServerApp",
    "strategies",
]
