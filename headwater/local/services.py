"""The local stack: a KRaft Kafka broker and a Spark Thrift server, as background processes.

Each has a folder under HEADWATER_HOME with its pid file and configuration, and a log beside the
others. A pid file names the process by pid and start time, so that a recycled pid is never ours.
"""

import json
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Container, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from headwater.local.jars import classpath, ensure_jars
from headwater.local.java import find_java
from headwater.local.thrift import FAST_START, thrift_command
from ingestion.catalog import ensure_namespaces
from ingestion.errors import ServiceError
from ingestion.kafka import broker_problem
from ingestion.settings import LOOPBACK, Settings, child_environment
from ingestion.spark import spark_environment

STOP_SECONDS = 30
READY_SECONDS = 120
LOG_LINES = 12
FULL_DISK_BYTES = 1_000_000


@dataclass(frozen=True)
class Service:
    """One server: how it is started, where it listens, and how it shows that it is ready."""

    name: str
    title: str
    port: int
    port_setting: str
    external: str | None  # the setting that names a server of the user's own
    start: Callable[[Settings, Path], subprocess.Popen[bytes]]
    problem: Callable[[Settings], str | None]  # None when it answers

    def folder(self, settings: Settings) -> Path:
        return settings.home / self.name

    def log(self, settings: Settings) -> Path:
        return settings.logs / f"{self.name}.log"


def services(settings: Settings) -> list[Service]:
    return [
        Service(
            name="kafka",
            title="Kafka broker",
            port=settings.kafka_port,
            port_setting="HEADWATER_KAFKA_PORT",
            external="HEADWATER_KAFKA_BOOTSTRAP_SERVERS"
            if settings.kafka_bootstrap_servers
            else None,
            start=_start_kafka,
            problem=broker_problem,
        ),
        Service(
            name="thrift",
            title="Spark Thrift server",
            port=settings.thrift_port,
            port_setting="HEADWATER_THRIFT_PORT",
            external="HEADWATER_THRIFT_HOST" if settings.thrift_host else None,
            start=_start_thrift,
            problem=thrift_problem,
        ),
    ]


def up(settings: Settings, say: Callable[[str], None]) -> None:
    """Start what is not running yet, and return when all of it answers."""
    launched: list[Service] = []
    start(settings, say, launched)
    wait_ready(settings, launched, say)


def start(
    settings: Settings,
    say: Callable[[str], None],
    launched: list[Service],
    only: Container[str] = ("kafka", "thrift"),
) -> None:
    """Launch what is not running yet, without waiting; `launched` gets what to wait for."""
    ensure_namespaces(settings)
    for service in services(settings):
        if service.name not in only:
            continue
        if service.external:
            if problem := service.problem(settings):
                raise ServiceError(
                    f"{service.external} names a {service.title} of yours, but {problem}",
                    f"start it, correct the setting, or unset {service.external} for a local one",
                )
            say(f"{service.title}: yours, from {service.external}")
        elif running_pid(settings, service):
            say(f"{service.title}: running on port {service.port}")
        else:
            _launch(settings, service, say)
            launched.append(service)


def wait_ready(settings: Settings, launched: list[Service], say: Callable[[str], None]) -> None:
    for service in launched:
        began = time.monotonic()
        while problem := service.problem(settings):
            if not running_pid(settings, service):
                _pid_file(settings, service).unlink(missing_ok=True)
                raise ServiceError(
                    f"the {service.title} ended while it started. The last lines of its log:\n"
                    + log_tail(service.log(settings)),
                    _start_hint(settings, service),
                )
            if time.monotonic() - began > READY_SECONDS:
                raise ServiceError(
                    f"the {service.title} did not answer within {READY_SECONDS} s: {problem}\n"
                    + log_tail(service.log(settings)),
                    f"full log: {service.log(settings)}; then `headwater down` and `headwater up`",
                )
            time.sleep(0.2)
        say(f"{service.title}: ready on {LOOPBACK}:{service.port}")


@contextmanager
def borrowed_stack(
    settings: Settings, say: Callable[[str], None], only: Container[str] = ("kafka", "thrift")
) -> Iterator[list[Service]]:
    """The stack for a while: what was not running is launched, and stopped again at the end.

    Yields what was launched; wait for it with `wait_ready`, when it is needed.
    """
    launched: list[Service] = []
    try:
        start(settings, say, launched, only)
        yield launched
    finally:
        for service in reversed(launched):
            end(settings, service, say)


def down(settings: Settings, say: Callable[[str], None]) -> None:
    """Stop what `up` started, and nothing else."""
    for service in reversed(services(settings)):
        end(settings, service, say)


def running_pid(settings: Settings, service: Service) -> int | None:
    """The pid of the process that `up` started, if it still lives."""
    try:
        written = json.loads(_pid_file(settings, service).read_text())
        process = psutil.Process(written["pid"])
        if process.create_time() == written["started"] and process.status() != "zombie":
            return process.pid
    except (OSError, ValueError, KeyError, psutil.NoSuchProcess):
        pass
    return None


def thrift_away(settings: Settings) -> str | None:
    """Why the Thrift server cannot be reached, or None when it listens: a quick look."""
    host, port = settings.thrift_address
    return None if _listens(host, port) else f"nothing listens at {host}:{port}"


def thrift_problem(settings: Settings) -> str | None:
    """Why the Thrift server does not answer, or None when it runs a query."""
    if away := thrift_away(settings):
        return away
    host, port = settings.thrift_address
    from pyhive import hive

    try:
        with closing(hive.connect(host=host, port=port)) as connection:
            connection.cursor().execute("select 1")
    except Exception as error:  # PyHive raises what Thrift, SASL and the socket raise
        return f"{host}:{port} did not run a query: {str(error).splitlines()[0][:200]}"
    return None


def port_holder(port: int) -> str | None:
    """Who listens on this loopback port, as far as we may know; None when it is free."""
    if not _listens(LOOPBACK, port):
        return None
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,):
                if connection.pid:
                    return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
                break
    except psutil.Error:
        pass
    return "another process"


def log_tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "  (no log)"
    told = [line for line in lines if not line.lstrip().startswith("at ")]  # no stack frames
    return "\n".join(f"  {line[:200]}" for line in told[-LOG_LINES:]) or "  (the log is empty)"


def _start_hint(settings: Settings, service: Service) -> str:
    if shutil.disk_usage(settings.home).free < FULL_DISK_BYTES:
        return "the disk is full: free some space, or set HEADWATER_HOME to another disk"
    return f"fix what the log names, then run `headwater up`; {service.log(settings)}"


def _launch(settings: Settings, service: Service, say: Callable[[str], None]) -> None:
    pid_file = _pid_file(settings, service)
    if pid_file.exists():
        say(f"{service.title}: its earlier process has ended; starting it again")
        pid_file.unlink()
    if holder := port_holder(service.port):
        raise ServiceError(
            f"port {service.port} for the {service.title} is taken by {holder}",
            f"stop that process, or set {service.port_setting} to a free port",
        )
    folder = service.folder(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        service.log(settings).parent.mkdir(parents=True, exist_ok=True)
        process = service.start(settings, folder)
        try:
            started = psutil.Process(process.pid).create_time()
            pid_file.write_text(json.dumps({"pid": process.pid, "started": started}))
        except OSError:
            process.kill()  # without its pid file, `down` would never find it
            raise
    except OSError as error:
        raise ServiceError(
            f"the {service.title} could not be started in {folder}: {error.strerror}",
            "free some space or make the folder writable, or set HEADWATER_HOME to another one",
        ) from error


def end(settings: Settings, service: Service, say: Callable[[str], None]) -> None:
    pid = running_pid(settings, service)
    if pid:
        _stop(pid)
    say(f"{service.title}: {'stopped' if pid else 'not running'}")
    _pid_file(settings, service).unlink(missing_ok=True)


def _pid_file(settings: Settings, service: Service) -> Path:
    return service.folder(settings) / "pid.json"


def _stop(pid: int) -> None:
    process = psutil.Process(pid)
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _spawn(
    command: list[str], folder: Path, log: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=folder,  # where a server may leave files of its own, such as derby.log
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child_environment(**environment),
            start_new_session=True,  # Ctrl-C in the terminal is not for the servers
        )


def _start_kafka(settings: Settings, folder: Path) -> subprocess.Popen[bytes]:
    properties = broker_properties(folder, {"PLAINTEXT": settings.kafka_port})
    return start_broker(settings, folder, properties)


def broker_properties(folder: Path, ports: dict[str, int]) -> dict[str, str]:
    """A broker that is its own controller, with one loopback listener a security protocol."""
    listeners = ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())
    controller = _free_port()
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in ports)
        + ",CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / "data"),
        "num.partitions": "4",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }


def start_broker(
    settings: Settings, folder: Path, properties: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a broker in this folder, whose data folder is prepared when it is new."""
    jars = classpath(ensure_jars(settings, ["kafka"]))
    log4j = Path(__file__).with_name("log4j2-kafka.properties")
    java = [str(find_java().command), "-Xmx512m", *FAST_START.split()]
    java += [f"-Dlog4j2.configurationFile={log4j}", "-cp", jars]
    data = folder / "data"
    config = folder / "server.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    if not (data / "meta.properties").exists():
        shutil.rmtree(data, ignore_errors=True)  # an interrupted format leaves a half folder
        cluster = uuid.uuid4().hex[:22]
        command = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServiceError(
                f"the Kafka broker's data folder could not be prepared: {data}\n"
                + (done.stdout + done.stderr)[-1000:],
                "free some space or make the folder writable, or set HEADWATER_HOME to another one",
            )
    return _spawn([*java, "kafka.Kafka", str(config)], folder, settings.logs / "kafka.log", {})


def _start_thrift(settings: Settings, folder: Path) -> subprocess.Popen[bytes]:
    log = settings.logs / "thrift.log"
    return _spawn(thrift_command(settings, folder, log), folder, log, spark_environment(settings))
