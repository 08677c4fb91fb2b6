"""Which data files the statements of a Thrift server read, as Spark and Iceberg themselves tell."""

import re
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import psutil
import requests

from headwater.local.services import running_pid, services
from ingestion.settings import Settings

# Iceberg's reports reach the log of a server that was started with this in its environment.
REPORTING = {"JAVA_TOOL_OPTIONS": "-Dheadwater.log.scans=info"}
SCAN = re.compile(r"BatchScan lake\.(\w+\.\w+)")  # no metadata tables, no changelogs
REPORT = re.compile(r"ScanReport\{tableName=lake\.(\w+\.\w+), .*?resultDataFiles=\w+\{.*?=(\d+)\}")


class Scans:
    """What a Thrift server has read since the last look.

    Spark's page has the scans of each plan. Before a merge, Spark looks its keys up in the files
    that may hold them; that is in no plan, but Iceberg reports it. Changelogs are not told: they
    read the files of the commits between two runs.
    """

    def __init__(self, settings: Settings) -> None:
        (thrift,) = (one for one in services(settings) if one.name == "thrift")
        self.pid = running_pid(settings, thrift)
        if not self.pid:
            raise SystemExit(f"no Thrift server runs in {settings.home}")
        self.page = next(self._pages(self.pid, settings.thrift_port))
        newest = requests.get(f"{self.page}?details=false&length=100000", timeout=60).json()
        self.seen = max((one["id"] for one in newest), default=-1)
        self.log = settings.home / "logs" / "thrift.log"
        self.told = len(self.log.read_text())

    def new(self) -> Iterator[tuple[str, int]]:
        """Each read of a table: the table, and how many data files were planned."""
        time.sleep(0.5)  # Spark tells a little later
        log, began = self.log.read_text(), self.told
        self.told = len(log)
        for table, files in chain(*map(_planned, self._statements()), REPORT.findall(log, began)):
            yield table, int(files)

    def _pages(self, pid: int, thrift_port: int) -> Iterator[str]:
        for one in psutil.Process(pid).net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr.port != thrift_port:
                base = f"http://127.0.0.1:{one.laddr.port}/api/v1/applications"
                try:
                    (application,) = requests.get(base, timeout=5).json()
                except (requests.RequestException, ValueError):
                    continue  # another of its ports
                yield f"{base}/{application['id']}/sql"
        raise SystemExit("the Thrift server has no web page")

    def _statements(self) -> Iterator[dict[str, Any]]:
        """With the metrics of their plans; Spark forgets them soon."""
        while True:
            found = requests.get(f"{self.page}/{self.seen + 1}?planDescription=false", timeout=60)
            if found.status_code == requests.codes.not_found:
                return
            self.seen += 1
            yield found.json()


def _planned(statement: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for node in statement["nodes"]:
        table_name = SCAN.fullmatch(node["nodeName"])
        for metric in node["metrics"]:
            if table_name and metric["name"] == "number of result data files":
                yield table_name[1], metric["value"].replace(",", "")
