"""The imports from Flower, the library `flwr`: the extra `federated`."""

from ...compat import check_flwr

check_flwr()

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg, Result, Strategy  # noqa: E402

__all__ = [
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "FedAvg",
    "Grid",
    "Message",
    "MessageType",
    "MetricRecord",
    "RecordDict",
    "Result",
    "ServerApp",
    "Strategy",
]
