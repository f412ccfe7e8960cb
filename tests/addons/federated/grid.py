"""Flower's grid without processes: server and clients are the real apps, and messages go through Flower's own form."""

import json
import shutil
from collections.abc import Callable
from itertools import count

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.supercore.task_identity import TaskIdentity

from thinc_torchopt.addons.federated import client


class LocalGrid:
    """Clients in this process, and what a server asks of a grid.

    clients (dict): The settings of each, as after --node-config, by its name.
    spoil (Callable): `spoil(kind, name, reply)` returns the reply that arrives, or None: there is none.

    Public: `log` (kind, name, and error or None of each message).
    """

    def __init__(self, clients: dict[str, dict], spoil: Callable = lambda kind, name, reply: reply):
        # Flower's processes do that when they start.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.clients = clients
        self.spoil = spoil
        self.log: list[tuple[str, str, str | None]] = []
        self._ids = count(1)
        self.nodes: dict[int, str] = {}
        self.contexts: dict[int, Context] = {}
        for name in clients:
            self.start(name)

    def start(self, name: str, node: int | None = None) -> None:
        """A supernode is started, or started again. node (int | None): Its id. None: a new one."""
        self.stop(name)
        node = next(self._ids) if node is None else node
        self.nodes[node] = name
        self.contexts[node] = Context(1, node, self.clients[name], RecordDict(), {})

    def stop(self, name: str) -> None:
        for node in [node for node, known in self.nodes.items() if known == name]:
            del self.nodes[node], self.contexts[node]

    def forget(self, name: str) -> None:
        """The state of a client is lost, with its disk."""
        shutil.rmtree(f"{self.clients[name]['config']}.state")

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, *, timeout=None):
        assert messages  # Flower would be asked in vain
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{next(self._ids)}"
            node = message.metadata.dst_node_id
            reply = self._ask(node, message) if node in self.nodes else None
            if reply is not None:
                replies.append(reply)
        return replies

    def _ask(self, node: int, message: Message) -> Message | None:
        name, kind = self.nodes[node], message.metadata.message_type
        sent = make_message(metadata=message.metadata, content=_travelled(message.content))
        context = self.contexts[node]
        context.state = _travelled(context.state)
        try:
            reply = client.app(sent, context)
            reply = make_message(metadata=reply.metadata, content=_travelled(reply.content))
            self.log.append((kind, name, None))
        except Exception as error:
            reply = Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
            self.log.append((kind, name, str(error)))
        return self.spoil(kind, name, reply)


def change_form(content: RecordDict, **values: object) -> None:
    """Change values of the form in a message."""
    head = content["head"]
    head["form"] = json.dumps({**json.loads(head["form"]), **values})


def _travelled(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))
