"""Several hosts on this one machine, made of Linux namespaces.

Each host has its own network interfaces, host name, process ids, ``/proc``, ``/dev/shm`` and ``/etc/hosts``; the files
are those of this machine.  A host lives as long as its first process, which holds its namespaces and waits for the
end of a pipe from here: no namespace and no interface has a name outside, so runs at the same time do not meet, and
when this process ends, in whichever way, the kernel removes everything, with all processes that run there.

The hosts are plugged into a switch, a bridge in a namespace of its own.  Host number ``n`` has the addresses
``10.77.0.n`` and ``fd00::n`` at ``eth0``, and the names ``host-a``, ``host-b`` ... stand for both.

Needs root, and ``ip`` of iproute2; :func:`why_not` says what is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.jobs import Job

__all__ = ["HAS_IPV6", "Host", "HostsJob", "Network", "network", "rules_against", "wait_until", "why_not"]

PROGRAMS = ("ip", "nsenter", "unshare", "mount")
"""What is called; all but the first are part of every Linux distribution."""

HAS_IPV6 = Path("/proc/net/if_inet6").exists()
"""Whether the kernel knows it; otherwise the hosts have IPv4 addresses only."""

_FIRST_PROCESS = """
import signal, socket, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans come to this process; the kernel reaps them
socket.sethostname(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""
_CLONE_NEWPID = 0x20000000
_END_SECONDS = 20


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: ``host-a`` and so on.
        number: from 1; the last part of its addresses.
        pid: of its first process, as seen from here.
    """

    name: str
    number: int
    pid: int

    @property
    def ipv4(self) -> str:
        """Its address at ``eth0``."""
        return f"10.77.0.{self.number}"

    @property
    def ipv6(self) -> str:
        """The other one."""
        return f"fd00::{self.number}"


class Network:
    """Hosts and the switches between them. Use :func:`network`, which removes them in any case.

    Args:
        folder: for the hosts file.
        count: number of hosts.

    Attributes:
        folder: the same.
        hosts: by name; ``network["host-a"]`` is short for it.

    Raises:
        RuntimeError: a program failed; the message is its own.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.hosts: dict[str, Host] = {}
        self._firsts: list[subprocess.Popen[str]] = []
        self._others: list[subprocess.Popen[bytes]] = []
        self._hosts_file = folder / "hosts"
        self._hosts_file.write_text("127.0.0.1 localhost\n::1 localhost\n")
        try:
            self._build(count)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def close(self) -> None:
        """End all processes on the hosts, and remove the hosts."""
        for each in self._firsts:
            assert each.stdin is not None
            each.stdin.close()
        for other in self._others:  # the first process of a host ends when all others there have been reaped
            other.wait(_END_SECONDS)
        for each in self._firsts:
            each.wait(_END_SECONDS)
            assert each.stdout is not None
            each.stdout.close()

    def run(self, host: str, argv: Sequence[str], environ: Mapping[str, str], output: Path) -> subprocess.Popen[bytes]:
        """Start a process on a host, in the present directory, with both streams of output in a file.

        The result stands for the process itself, not for one that has started it. Its ``pid`` is the one seen from
        here; on the host it has another one.
        """
        pid = self.hosts[host].pid
        enter = ["nsenter", f"--target={pid}", "--net", "--uts", "--mount", "env", f"--chdir={Path.cwd()}", *argv]
        with output.open("wb") as stream, _children_have_process_ids_of(pid):
            process = subprocess.Popen(
                enter, env=environ, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
            )
        self._others.append(process)
        return process

    def ask(self, host: str, argv: Sequence[str]) -> str:
        """What a command prints there."""
        return self._enter(self.hosts[host].pid, ["--net", "--uts", "--mount", *argv])

    def link_down(self, host: str) -> None:
        """Pull the cable of ``eth0`` out of the switch: the host loses its carrier, the others notice nothing."""
        self._ip(self._switch, f"link set dev {_port_of(host)} down")

    def link_up(self, host: str) -> None:
        """Plug it in again."""
        self._ip(self._switch, f"link set dev {_port_of(host)} up")

    def block_port(self, host: str, port: int, *, reject: bool = False) -> None:
        """A firewall on ``host``: packets of new connections to the TCP port disappear.

        Args:
            reject: they are answered instead, by ICMP: some of them, since there is a limit for that.
        """
        pid = self.hosts[host].pid
        if reject:  # only a router says that something is prohibited
            for path in ("ipv4/ip_forward", "ipv6/conf/all/forwarding")[: 1 + HAS_IPV6]:
                self._enter(pid, ["--net", "--mount", "sh", "-c", f"echo 1 > /proc/sys/net/{path}"])
        for family in ("-4", "-6")[: 1 + HAS_IPV6]:
            self._ip(pid, *rules_against(port, reject), family=family)

    def limit_rate(self, mbit: float) -> None:
        """Make all links of ``eth0`` so fast, each way, by token buckets at both ends (``tc`` of iproute2).

        A bucket holds 64 KiB, so short bursts pass at once; a queue holds what passes in 50 ms, and drops the rest.
        """
        shape = ["root", "tbf", "rate", f"{mbit:g}mbit", "burst", "64kb", "latency", "50ms"]
        for host in self.hosts.values():
            self._enter(host.pid, ["--net", "tc", "qdisc", "add", "dev", "eth0", *shape])
            self._enter(self._switch, ["--net", "tc", "qdisc", "add", "dev", _port_of(host.name), *shape])

    def add_interface(self, name: str, subnet: int) -> None:
        """Plug all hosts into one more switch, by an interface called ``name``.

        Host ``n`` has the addresses ``10.<subnet>.0.n`` and ``fd<subnet>::n`` there.
        """
        self._ip(self._switch, f"link add name {name} type bridge", f"link set dev {name} up")
        for host in self.hosts.values():
            self._plug(host, name, name, (f"10.{subnet}.0.{host.number}", f"fd{subnet:02}::{host.number}"))

    def add_name(self, name: str, *addresses: str) -> None:
        """Let a name stand for addresses, on all hosts."""
        with self._hosts_file.open("a") as stream:  # the same file: a new one would not be seen on the hosts
            stream.writelines(f"{address} {name}\n" for address in addresses)

    def _build(self, count: int) -> None:
        self._switch = self._start("switch")
        self._ip(self._switch, "link set dev lo up", "link add name eth0 type bridge", "link set dev eth0 up")
        for number, letter in zip(range(1, count + 1), string.ascii_lowercase, strict=False):
            host = Host(f"host-{letter}", number, self._start(f"host-{letter}"))
            self.hosts[host.name] = host
            self._enter(host.pid, ["--mount", "mount", "--bind", str(self._hosts_file), "/etc/hosts"])
            self._enter(host.pid, ["--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"])
            self._ip(host.pid, "link set dev lo up")
            self._plug(host, "eth0", "eth0", (host.ipv4, host.ipv6))
            self.add_name(host.name, host.ipv4, *([host.ipv6] if HAS_IPV6 else []))

    def _start(self, name: str) -> int:
        """A new set of namespaces; returns its first process."""
        new = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        first = subprocess.Popen(
            ["unshare", *new, sys.executable, "-S", "-c", _FIRST_PROCESS, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._firsts.append(first)
        assert first.stdout is not None
        said = first.stdout.readline()
        if said != "ready\n":
            raise RuntimeError(said.strip() or "unshare failed")
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        return int(children[0])

    def _plug(self, host: Host, interface: str, bridge: str, addresses: Sequence[str]) -> None:
        port = _port_of(host.name) if interface == "eth0" else f"{host.name}-{interface}"[:15]
        self._ip(
            self._switch,
            f"link add name {port} type veth peer name {interface} netns {host.pid}",
            f"link set dev {port} master {bridge}",
            f"link set dev {port} up",
        )
        ipv4, ipv6 = addresses
        self._ip(
            host.pid,
            *([f"link set dev {interface} addrgenmode none"] if HAS_IPV6 else []),
            f"addr add {ipv4}/24 dev {interface}",
            *([f"addr add {ipv6}/64 dev {interface} nodad"] if HAS_IPV6 else []),
            f"link set dev {interface} up",
        )

    def _ip(self, pid: int, *commands: str, family: str = "-0") -> None:
        batch = [] if family == "-0" else [family]
        self._enter(pid, ["--net", "ip", *batch, "-batch", "-"], "\n".join(commands) + "\n")

    def _enter(self, pid: int, arguments: Sequence[str], text: str = "") -> str:
        command = ["nsenter", f"--target={pid}", *arguments]
        done = subprocess.run(
            command, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stdout.strip()}\n{text}")
        return done.stdout


class HostsJob(Job):
    """A job with its processes on hosts, started by ``bpslaunch`` unless told otherwise.

    Args:
        hosts: where they run; the output of the processes goes to the folder of these.
        places: the host of each process: ``{"scheduler": "host-a", "server0": "host-b", ...}``.
        launch: by ``bpslaunch``; False starts the role's own command, or the worker's script itself.

    Attributes:
        network: the hosts.
    """

    def __init__(
        self,
        hosts: Network,
        places: Mapping[str, str],
        *,
        launch: bool = True,
        **environ: str,
    ) -> None:
        workers = len({host for name, host in places.items() if name.startswith("worker")})
        servers = sum(name.startswith("server") for name in places)
        address = {"DMLC_PS_ROOT_URI": hosts[places["scheduler"]].ipv4, "DMLC_PS_ROOT_PORT": "9000"}
        super().__init__(hosts.folder, workers, servers, **{**address, **environ})
        self.network = hosts
        self._places = places
        self._launch = launch

    def server(self, index: int = 0, **environ: str) -> None:
        """Start a server, with variables of its own."""
        self._start(f"server{index}", ["-m", "byteps_py", "server"], **environ)

    def script(self, index: int, *arguments: str) -> None:
        """Start a worker that runs a Python script with these arguments."""
        self._start(f"worker{index}", list(arguments), DMLC_WORKER_ID=str(index))

    def all_but_workers(self) -> None:
        """Start the scheduler and the servers."""
        self.scheduler()
        for index in range(sum(name.startswith("server") for name in self._places)):
            self.server(index)

    def _start(self, name: str, arguments: list[str], **environ: str) -> None:
        command = [sys.executable, *arguments]
        if self._launch:
            itself = [sys.executable, "-m", "byteps_py.launcher"]
            command = [*itself, *command] if name.startswith("worker") else itself
        role = {"DMLC_ROLE": name.rstrip("0123456789")}
        self.processes[name] = self.network.run(
            self._places[name], command, {**self._environ, **role, **environ}, self.folder / name
        )


@contextlib.contextmanager
def network(folder: Path, count: int) -> Iterator[Network]:
    """``count`` hosts, that exist inside the with statement."""
    made = Network(folder, count)
    try:
        yield made
    finally:
        made.close()


def wait_until(condition: Callable[[], bool], describe: Callable[[], str], timeout: float = 30.0) -> None:
    """Wait until something is true; an AssertionError with ``describe()`` where that takes too long."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.02)


@functools.cache
def why_not() -> str | None:
    """Why no hosts can be made here; None if they can."""
    missing = [each for each in PROGRAMS if shutil.which(each) is None]
    if missing:
        return f"{', '.join(missing)} not installed (ip is in the package iproute2)"
    if os.geteuid():
        return "network namespaces need root"
    try:
        with tempfile.TemporaryDirectory() as folder, network(Path(folder), 1):
            return None
    except RuntimeError as error:
        return f"no network namespaces here: {error}"


def rules_against(port: int, reject: bool) -> list[str]:
    """Commands for ``ip -batch``, after which packets to the TCP port of this host go nowhere.

    A host asks its routing rules about what arrives, too. The rule for its own addresses, which is the first, is put
    behind that for the port.
    """
    return [
        "rule add pref 9 table local",
        "rule del pref 0",
        f"rule add pref 5 ipproto tcp dport {port} {'prohibit' if reject else 'blackhole'}",
    ]


def _port_of(host: str) -> str:
    """The end of the host's cable at the switch."""
    return f"to-{host}"


@contextlib.contextmanager
def _children_have_process_ids_of(pid: int) -> Iterator[None]:
    """Processes that this thread starts inside the with statement live among the process ids of process ``pid``."""
    with Path("/proc/thread-self/ns/pid").open("rb") as here, Path(f"/proc/{pid}/ns/pid").open("rb") as there:
        _set_namespace(there.fileno())
        try:
            yield
        finally:
            _set_namespace(here.fileno())


def _set_namespace(descriptor: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(descriptor, _CLONE_NEWPID):
        raise OSError(ctypes.get_errno(), "setns")
