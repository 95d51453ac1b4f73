"""Two machines on one: network namespaces that see each other over one cable, with one file system.

    +--------- machine-1 ----------+           +--------- machine-2 ----------+
    | torchrun agent and its ranks | 10.77.0.1 | torchrun agent and its ranks |
    |                              |===========|                              |
    +------------------------------+ 10.77.0.2 +------------------------------+

Needs root and Linux's `ip` and `unshare`. Nothing outside of the two namespaces changes, but for
their files in /etc/netns, which go with them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

DEVICE = "cable"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
HOSTS = ("machine-1", "machine-2")
NOBODY = "02:00:00:00:00:99"  # no device has this address: who gets a packet for it drops it
RETRIES = 7  # doubling waits of 0.2 seconds: 51 seconds
PORT = 29500  # free, as nothing else runs there
# A machine has its own name, as torchrun's agents and fedbench's messages show it.
WITH_HOST_NAME = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'


class NotPossible(Exception):
    """Why there can be no namespaces here."""


def ip(*words: str) -> str:
    """Call `ip`; what it refuses is a reason to skip."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise NotPossible(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def wait_until(happened: Callable[[], bool], seconds: float) -> bool:
    """Whether it happened; the limit is a safety net, and no measure of anything."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if happened():
            return True
        time.sleep(0.05)
    return happened()


@dataclass
class Node:
    """One torchrun agent with its ranks, on one machine. Every stream goes to a file."""

    process: subprocess.Popen[bytes]
    logs: Path
    started: float
    ended: float | None = None

    def running(self) -> bool:
        if self.ended is None and self.process.poll() is not None:
            self.ended = time.monotonic()
        return self.ended is None

    @property
    def agent(self) -> str:
        """What torchrun's agent itself said."""
        return (self.logs / "agent.txt").read_text()

    def _of_ranks(self, stream: str) -> str:
        return "".join(file.read_text() for file in sorted(self.logs.rglob(f"{stream}.log")))

    @property
    def out(self) -> str:
        """What its ranks wrote to standard output."""
        return self._of_ranks("stdout")

    @property
    def err(self) -> str:
        """What its ranks wrote to standard error."""
        return self._of_ranks("stderr")

    def __str__(self) -> str:
        state = "running" if self.ended is None else f"{self.ended - self.started:.1f} s"
        texts = {"agent": self.agent, "stdout": self.out, "stderr": self.err}
        shown = "".join(f"\n--- {name}\n{text}" for name, text in texts.items())
        return f"status {self.process.returncode}, {state}{shown}"


def show(nodes: list[Node]) -> str:
    """Everything that was said, for a failed assertion."""
    named = zip(HOSTS, nodes, strict=True)
    return "\n".join(f"=== {host}: {node}" for host, node in named)


@dataclass
class Machine:
    """A network namespace with a host name, an address, and one device besides the loopback."""

    namespace: str
    host: str
    address: str
    nodes: list[Node] = field(default_factory=list)

    def create(self) -> None:
        self._files.mkdir(parents=True)  # `ip netns exec` lays these over those of /etc
        lines = ["127.0.0.1 localhost", *map(" ".join, zip(ADDRESSES, HOSTS, strict=True))]
        (self._files / "hosts").write_text("".join(f"{line}\n" for line in lines))
        (self._files / "resolv.conf").write_text("")  # nobody waits for a server of names
        ip("netns", "add", self.namespace)

    def plug_in(self) -> None:
        ip("-n", self.namespace, "link", "set", "lo", "up")
        ip("-n", self.namespace, "address", "add", f"{self.address}/24", "dev", DEVICE)
        ip("-n", self.namespace, "link", "set", DEVICE, "up")

    @property
    def _files(self) -> Path:
        return Path("/etc/netns") / self.namespace

    def start(self, words: list[str], folder: Path, logs: Path, **environment: str) -> Node:
        """Run torchrun with these words on this machine, in this folder."""
        logs.mkdir(parents=True)
        inside = ["ip", "netns", "exec", self.namespace, "unshare", "--uts"]
        named = ["sh", "-c", WITH_HOST_NAME, self.host, sys.executable, "-m"]
        torchrun = ["torch.distributed.run", f"--log-dir={logs}", "--redirects=3", *words]
        always = {"GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1"}
        with open(logs / "agent.txt", "wb") as output:
            process = subprocess.Popen(
                [*inside, *named, *torchrun],
                cwd=folder,
                env={**os.environ, **always, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.nodes.append(Node(process, logs, time.monotonic()))
        return self.nodes[-1]

    def processes(self) -> list[int]:
        """Whoever runs on this machine: torchrun gives each rank a process group of its own."""
        return [int(number) for number in ip("netns", "pids", self.namespace).split()]

    def lose(self, other: Machine) -> None:
        """Let every packet for the other machine vanish silently, as a broken switch does."""
        neighbour = (other.address, "lladdr", NOBODY, "dev", DEVICE, "nud", "permanent")
        ip("-n", self.namespace, "neighbour", "replace", *neighbour)

    def run(self, *command: str) -> str:
        """The output of a short command on this machine."""
        return ip("netns", "exec", self.namespace, *command)

    def received_bytes(self) -> int:
        """What came over the cable so far, with the headers of packets."""
        lines = self.run("cat", "/proc/self/net/dev").splitlines()
        (line,) = (line for line in lines if line.strip().startswith(f"{DEVICE}:"))
        return int(line.partition(":")[2].split()[0])

    def remove(self) -> None:
        """Kill whoever runs there, and leave nothing."""
        with suppress(NotPossible):
            for number in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        for node in self.nodes:
            with suppress(ProcessLookupError):
                os.killpg(node.process.pid, signal.SIGKILL)
            node.process.wait()
        with suppress(NotPossible):
            ip("netns", "delete", self.namespace)
        shutil.rmtree(self._files, ignore_errors=True)


class TwoMachines:
    """A pair of machines and what runs on them; `remove` it, whatever happened."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        name = f"fedbench-{uuid.uuid4().hex[:12]}"
        self.machines = [
            Machine(f"{name}-{number}", host, address)
            for number, (host, address) in enumerate(zip(HOSTS, ADDRESSES, strict=True), start=1)
        ]

    def create(self) -> None:
        for program in ("ip", "unshare"):
            if not shutil.which(program):
                raise NotPossible(f"there is no `{program}` here")
        if os.geteuid() != 0:
            raise NotPossible("only root makes network namespaces")
        first, second = self.machines
        try:
            first.create()
            second.create()
        except OSError as error:
            raise NotPossible(str(error)) from error
        link = ("link", "add", DEVICE, "netns", first.namespace, "type", "veth")
        ip(*link, "peer", "name", DEVICE, "netns", second.namespace)
        first.plug_in()
        second.plug_in()

    def start(
        self,
        *words: str,
        ranks: int = 1,
        rendezvous: str = "static",
        program: tuple[str, ...] = ("-m", "fedbench"),
        folders: tuple[Path, Path],
        data: tuple[Path, Path],
    ) -> list[Node]:
        """`torchrun ... PROGRAM WORDS` on both machines, each in its folder with its data."""
        common = ["--nnodes=2", f"--nproc-per-node={ranks}"]
        if rendezvous == "c10d":
            endpoint = f"--rdzv-endpoint={ADDRESSES[0]}:{PORT}"
            common += ["--rdzv-backend=c10d", "--rdzv-id=two-machines", endpoint]
        else:
            common += [f"--master-addr={ADDRESSES[0]}", f"--master-port={PORT}"]
        nodes = []
        for number, machine in enumerate(self.machines):
            own = [] if rendezvous == "c10d" else [f"--node-rank={number}"]
            arguments = [*common, *own, *program, *words, "logger=none"]
            logs = self.logs / machine.host
            environment = {"FEDBENCH_DATA": str(data[number])}
            nodes.append(machine.start(arguments, folders[number], logs, **environment))
        return nodes

    def end(self, nodes: list[Node], seconds: float) -> None:
        """Wait until everything on both machines has ended."""
        self.end_ranks(nodes, seconds)
        ended = wait_until(lambda: sum(node.running() for node in nodes) == 0, 120)
        assert ended, f"an agent is still running after its ranks\n{show(nodes)}"
        ended = wait_until(lambda: not self._processes(), 60)
        assert ended, f"processes that nobody ended: {self._processes()}\n{show(nodes)}"

    def end_ranks(self, nodes: list[Node], seconds: float) -> None:
        """Wait until all ranks on both machines have ended, but not for torchrun's agents."""
        agents = {node.process.pid for node in nodes}
        ended = wait_until(lambda: self._processes() <= agents, seconds)
        assert ended, f"ranks still running after {seconds:g} s\n{show(nodes)}"

    def _processes(self) -> set[int]:
        return {number for machine in self.machines for number in machine.processes()}

    def cut(self) -> None:
        """No packet reaches the other side any more, in either direction.

        The kernels give a connection up after a minute instead of a quarter of an hour: torchrun's
        agents of c10d wait for that, as their own limit of 60 seconds does not end them.
        """
        first, second = self.machines
        for machine in self.machines:
            machine.run("sh", "-c", f"echo {RETRIES} > /proc/sys/net/ipv4/tcp_retries2")
        first.lose(second)
        second.lose(first)

    def remove(self) -> None:
        for machine in self.machines:
            machine.remove()
