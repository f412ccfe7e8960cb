"""Flower's processes on this machine: a superlink, a supernode for each client, and `flwr run`.

All of it stays on 127.0.0.1, and nothing is left behind: in the end each process is killed, with all that it has
started. Call `exit_on_signals` first, or else a program that is ended by SIGTERM leaves them all.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

APP = Path(__file__).parent
BIN = Path(sys.executable).parent
# Nothing is sent anywhere, and no newer version is looked for.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
# What ends a program that does not see to it. There is no SIGHUP on Windows.
_ENDS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def exit_on_signals() -> None:
    """Let SIGTERM, and a terminal that is closed, end this program as an exception does: all is cleared up."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    for number in _ENDS:
        signal.signal(number, leave)


class Federation:
    """A server and its clients.

    folder (Path): For logs, one a process, and Flower's own files.
    clients (Mapping): By name, the settings of each, as after --node-config.
    tls (bool): Encrypt what they say, and let only clients take part whose keys are registered, as over a network.
    """

    def __init__(self, folder: Path, clients: Mapping[str, Mapping[str, object]], *, tls: bool = False):
        self.folder = folder
        self.clients = clients
        self.keys = folder / "keys" if tls else None
        self.home = folder / "flwr"
        self._database = self.home / "superlink.db"
        # They start each other by name.
        path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
        self._env = {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(self.home)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._port = 0
        self._settings: Mapping[str, object] = {}

    def start(self) -> None:
        shutil.rmtree(self.folder / "logs", ignore_errors=True)
        self.home.mkdir(parents=True, exist_ok=True)
        self._database.unlink(missing_ok=True)
        ports = free_ports(len(self.clients) + 1)
        self._port = ports.pop()
        trust = "insecure = true" if self.keys is None else f'root-certificates = "{self.keys / "server.crt"}"'
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self._port}"\n{trust}\n'
        )
        if self.keys is not None:
            make_keys(self.keys, self.clients)
        self._start_link()
        for name in self.clients if self.keys is not None else ():
            register = ["flwr", "supernode", "register", str(self.keys / f"{name}.pub"), "here", "--name", name]
            subprocess.run([str(BIN / register[0]), *register[1:]], env=self._env, check=True, capture_output=True)
        for name, port in zip(self.clients, ports):
            self.start_client(name, port)

    def _start_link(self) -> None:
        """Start the superlink. Its database lets supernodes come back to it when it was killed."""
        link = ["--host", "127.0.0.1", "--port", str(self._port), "--disable-runtime-dependency-installation"]
        link += ["--database", str(self._database)]
        if self.keys is None:
            link.append("--insecure")
        else:
            certificate, key = str(self.keys / "server.crt"), str(self.keys / "server.key")
            link += ["--ssl-certfile", certificate, "--ssl-keyfile", key, "--ssl-ca-certfile", certificate]
            link.append("--enable-supernode-auth")
        self._start("superlink", ["flower-superlink", *link])
        self._wait_for_port("superlink")

    def start_client(self, name: str, port: int | None = None) -> None:
        """port (int): Of the supernode's own interface, which no two share."""
        settings = " ".join(f"{key}={toml(value)}" for key, value in {"name": name, **self.clients[name]}.items())
        link = ["--superlink", f"127.0.0.1:{self._port}", "--port", str(port or free_ports(1)[0])]
        if self.keys is None:
            link.append("--insecure")
        else:
            link += ["--root-certificates", str(self.keys / "server.crt")]
            link += ["--auth-supernode-private-key", str(self.keys / name)]
        self._start(name, ["flower-supernode", *link, "--node-config", settings])

    def run(self, settings: Mapping[str, object]) -> None:
        """Begin a run. settings (Mapping): As after --run-config."""
        self._settings = settings
        overrides = " ".join(f"{key}={toml(value)}" for key, value in settings.items())
        self._start("run", ["flwr", "run", str(APP), "here", "--stream", "--run-config", overrides])

    def wait(self, seconds: float) -> None:
        """Wait for the end of the run. RAISES (TimeoutError): It takes longer."""
        try:
            self._processes["run"].wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"The run did not end within {seconds:g} seconds: see {self.log('run')}") from error

    @property
    def is_running(self) -> bool:
        return self._processes["run"].poll() is None

    def kill(self, name: str) -> None:
        """Kill a process as kill -9 does, with all that it has started."""
        process = self._processes.pop(name)
        _signal([process.pid, *descendants(process.pid)], signal.SIGKILL)
        process.wait()

    def end_client(self, name: str) -> None:
        """Stop a client as its user does. It can be started again at once: the superlink takes one that was killed for
        alive, until it has sent nothing for a minute.
        """
        process = self._processes.pop(name)
        process.terminate()
        process.wait(60)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to the processes that a client has started for a message, not to its supernode."""
        _signal(descendants(self._processes[name].pid), number)

    def kill_server(self) -> None:
        """Kill the superlink with its server, as a machine that fails does. Start both again: a new run goes on."""
        self.kill("superlink")
        self.kill("run")
        self._start_link()
        self.run(self._settings)

    def stop(self) -> None:
        """End all processes. It takes seconds, in which this program can't be ended: some would be left."""
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (*_ENDS, signal.SIGINT)}
        try:
            self._stop()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _stop(self) -> None:
        started = [pid for process in self._processes.values() for pid in descendants(process.pid)]
        _signal([process.pid for process in self._processes.values()], signal.SIGTERM)
        end = time.monotonic() + 5
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
        _signal(
            [*(process.pid for process in self._processes.values() if process.poll() is None), *started], signal.SIGKILL
        )
        for process in self._processes.values():
            process.wait()
        self._processes.clear()

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _start(self, name: str, command: list[str]) -> None:
        self.log(name).parent.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self._env,
                start_new_session=True,
            )

    def _wait_for_port(self, name: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._processes[name].poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"The {name} did not start: see {self.log(name)}")


@contextmanager
def federation(folder: Path, clients: Mapping[str, Mapping[str, object]], *, tls: bool = False) -> Iterator[Federation]:
    """Processes that are gone in the end, however that comes."""
    started = Federation(folder, clients, tls=tls)
    try:
        started.start()
        yield started
    finally:
        started.stop()


def make_keys(folder: Path, names: Iterable[str]) -> None:
    """A certificate for the server on this machine, and keys for each client, made by openssl and ssh-keygen."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -keyout server.key -out server.crt"
    commands = [[*request.split(), "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]]
    commands += [["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", name] for name in names]
    for command in commands:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


def toml(value: object) -> str:
    """A value as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, (str, Path)) else str(value)


def free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def descendants(pid: int) -> list[int]:
    """All that a process has started, and what these have started. Flower's are in sessions of their own."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in table.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
