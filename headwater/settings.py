"""All settings, read once from the environment and `.env`. Nothing else reads either."""

import difflib
import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from headwater.errors import SettingsError

PREFIX = "HEADWATER_"


def project_root() -> Path:
    """The dbt project around the working directory, else the checkout that this code runs from."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "dbt_project.yml").exists():
            return folder
    return Path(__file__).resolve().parent.parent


def _absolute(path: Path) -> Path:
    return path if path.is_absolute() else project_root() / path


LocalPath = Annotated[Path, AfterValidator(lambda path: _absolute(path.expanduser()))]
Port = Annotated[int, Field(ge=1, le=65535)]


class Settings(BaseSettings):
    """Field names are the variable names without the prefix, in lower case."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,  # `HEADWATER_THRIFT_HOST= make demo` unsets it
        extra="ignore",  # load() reports unknown names, with the nearest known one
        frozen=True,
        validate_default=True,
    )

    home: LocalPath = Field(
        Path(".headwater"),
        description="Folder of the local stack: pids, logs, broker data, warehouse, catalog. "
        "A relative path starts at the project.",
    )
    cache: LocalPath = Field(
        Path("~/.cache/headwater"),
        description="Folder of the resolved jars, shared between clones.",
    )
    maven_mirror: str | None = Field(
        None,
        pattern=r"^(https?|file)://",
        description="Address of a Maven repository to fetch jars from instead of the default one.",
    )
    kafka_bootstrap_servers: str | None = Field(
        None,
        pattern=r"^[^\s:,]+:\d+(,[^\s:,]+:\d+)*$",
        description="host:port list of your Kafka brokers. "
        "When unset, `headwater up` starts a broker of its own.",
    )
    streams: LocalPath = Field(
        Path("ingestion/streams"),
        description="Folder of the stream files, one YAML file a stream.",
    )
    schema_registry_url: str | None = Field(
        None,
        pattern=r"^https?://[^@\s]+$",  # a password has a variable of its own
        description="Address of the schema registry, for streams with `schema: registry`.",
    )
    schema_registry_username: str | None = Field(
        None, description="User name at the schema registry, if it asks for one."
    )
    schema_registry_password: SecretStr | None = Field(
        None, description="Password at the schema registry. Environment only, never in a file."
    )
    kafka_port: Port = Field(
        19092, description="Loopback port of the broker that `headwater up` starts."
    )
    catalog_type: Literal["embedded", "rest"] = Field(
        "embedded",
        description="`embedded` (SQLite in HEADWATER_HOME) or `rest` (an Iceberg REST catalog).",
    )
    catalog_uri: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Address of the REST catalog; needed with HEADWATER_CATALOG_TYPE=rest.",
    )
    warehouse: str | None = Field(
        None,
        description="Where tables live: a folder, or s3://bucket/prefix. "
        "Default: HEADWATER_HOME/warehouse.",
    )
    s3_endpoint: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Address of an S3-compatible store. Keys come from the standard AWS variables.",
    )
    spark_master: str = Field(
        "local[*]",
        pattern=r"^(local(\[(\*|\d+)(,\d+)?\])?|spark://.+|yarn|k8s://.+)$",
        description="Spark master of ingestion and of the local Thrift server.",
    )
    spark_driver_memory: str = Field(
        "2g",
        pattern=r"^\d+[mg]$",
        description="Heap of each Spark driver: ingestion and the local Thrift server.",
    )
    thrift_host: str | None = Field(
        None,
        description="Host of your Spark Thrift server. "
        "When unset, `headwater up` starts one on loopback.",
    )
    thrift_port: Port = Field(10000, description="Port of the Spark Thrift server.")
    log_format: Literal["human", "json"] = Field(
        "human", description="`human` lines, or one `json` object per event."
    )
    metrics_port: Port = Field(
        9108, description="Loopback port where `headwater ingest` offers metrics to Prometheus."
    )
    restarts: int = Field(
        5,
        ge=0,
        description="How often a stream that fails is started again before it is stopped. "
        "A commit in between starts the count anew.",
    )
    restart_pause_seconds: float = Field(
        2,
        gt=0,
        le=60,
        description="Pause before the first restart; it doubles with each, up to a minute.",
    )

    @property
    def bootstrap_servers(self) -> str:
        return self.kafka_bootstrap_servers or f"127.0.0.1:{self.kafka_port}"

    @property
    def thrift_address(self) -> tuple[str, int]:
        return self.thrift_host or "127.0.0.1", self.thrift_port

    @property
    def warehouse_location(self) -> str:
        return self.warehouse or str(self.home / "warehouse")

    @property
    def catalog_db(self) -> Path:
        return self.home / "catalog.db"

    @property
    def logs(self) -> Path:
        return self.home / "logs"


def variable(field: str) -> str:
    return PREFIX + field.upper()


def known_variables() -> dict[str, FieldInfo]:
    return {variable(name): field for name, field in Settings.model_fields.items()}


@cache
def settings() -> Settings:
    """The settings of this process; refused as a whole when any of them is wrong."""
    return load(project_root() / ".env")


def load(dotenv: Path) -> Settings:
    """The environment wins over the `.env` file. Every problem found is reported, not just one."""
    known = known_variables()
    problems = [
        _unknown(name, where, list(known))
        for where, names in ((dotenv.name, dotenv_values(dotenv)), ("the environment", os.environ))
        for name in names
        if name.upper().startswith(PREFIX) and name not in known
    ]
    problems += [
        f"{name} (in {dotenv.name}) is a secret: it belongs in the environment, not in a file"
        for name in dotenv_values(dotenv)
        if name in known and is_secret(known[name])
    ]
    loaded: Settings | None = None
    try:
        loaded = Settings(_env_file=dotenv)
    except ValidationError as error:
        problems += [
            f"{variable(str(detail['loc'][0]))} is {detail['input']!r}, but {_allowed(detail)}"
            for detail in error.errors()
        ]
    if loaded and loaded.catalog_type == "rest" and not loaded.catalog_uri:
        problems.append(
            "HEADWATER_CATALOG_URI is not set, and HEADWATER_CATALOG_TYPE=rest needs it"
        )
    if loaded is None or problems:
        raise SettingsError(
            "\n".join(problems),
            "correct or unset the variable; .env.example lists every setting",
        )
    return loaded


def is_secret(field: FieldInfo) -> bool:
    return "SecretStr" in str(field.annotation)


def _unknown(name: str, where: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.6)
    return f"{name} (in {where}) is not a setting" + (
        f"; did you mean {close[0]}?" if close else ""
    )


def _allowed(detail: Any) -> str:
    context, name = detail.get("ctx", {}), str(detail["loc"][0])
    match detail["type"]:
        case "literal_error":
            return f"must be {context['expected']}"
        case "int_parsing" | "greater_than_equal" | "less_than_equal" if name.endswith("port"):
            return "must be a whole number from 1 to 65535"
        case "string_pattern_mismatch":
            return f"must look like {EXAMPLES[name]}"
        case _:
            return str(detail["msg"])


EXAMPLES = {
    "maven_mirror": "https://repository.example.com/m2",
    "kafka_bootstrap_servers": "broker-1:9092,broker-2:9092",
    "catalog_uri": "https://catalog.example.com",
    "s3_endpoint": "https://s3.example.com",
    "schema_registry_url": "https://registry.example.com, without user and password",
    "spark_master": "local[*], local[4], spark://host:7077, yarn or k8s://...",
    "spark_driver_memory": "2g or 512m",
}


def java_home() -> Path | None:
    """The JDK that JAVA_HOME names, as Spark's launcher reads it."""
    value = os.environ.get("JAVA_HOME")
    return Path(value) if value else None


def child_environment(**extra: str) -> dict[str, str]:
    """The environment for a process that we start."""
    return {**os.environ, **extra}


def worker_python() -> str | None:
    """The interpreter that the shell names for Spark's workers."""
    return os.environ.get("PYSPARK_PYTHON")


def unexported() -> list[str]:
    """Variables that stand in `.env` but not in the environment, where dbt's profile looks."""
    written = dotenv_values(project_root() / ".env")
    return [name for name, value in written.items() if value and os.environ.get(name) != value]
