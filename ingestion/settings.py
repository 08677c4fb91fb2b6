"""All settings, read once from the environment and `.env`. Nothing else reads either."""

import difflib
import os
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv import dotenv_values
from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from ingestion.errors import SettingsError

PREFIX = "HEADWATER_"
LOOPBACK = "127.0.0.1"


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


def _one_line(secret: SecretStr) -> SecretStr:
    if re.search(r"[\r\n]", secret.get_secret_value()):
        raise ValueError("must be one line; a line break often comes with a secret from a file")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_one_line)]


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
    kafka_security_protocol: Literal["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"] = Field(
        "PLAINTEXT",
        description="How your brokers are reached: `PLAINTEXT`, `SASL_PLAINTEXT`, `SSL` or "
        "`SASL_SSL`.",
    )
    kafka_sasl_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "AWS_MSK_IAM"] | None
    ) = Field(
        None,
        description="How your brokers ask for a login: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` "
        "or `AWS_MSK_IAM`. When all of them have port 9098 and no security is set: `AWS_MSK_IAM`.",
    )
    kafka_username: str | None = Field(None, description="User name at Kafka.")
    kafka_password: Secret | None = Field(
        None, description="Password at Kafka. Environment only, never in a file."
    )
    kafka_ca_file: LocalPath | None = Field(
        None,
        description="PEM file of the authority that signed the brokers' certificates. "
        "When unset, those that the system trusts.",
    )
    kafka_certificate_file: LocalPath | None = Field(
        None, description="PEM file of your certificate and its chain, for mutual TLS."
    )
    kafka_key_file: LocalPath | None = Field(
        None, description="PEM file of the private key of that certificate."
    )
    kafka_key_password: Secret | None = Field(
        None, description="Password of that key. Environment only, never in a file."
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
    namespace_suffix: str = Field(
        "",
        pattern=r"^(_[a-z0-9_]+)?$",
        description="Suffix of the namespaces that dbt builds: with `_anna` they are `silver_anna` "
        "and `gold_anna`, so that people build beside each other on the same bronze.",
    )
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
        "A commit in between resets the count.",
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
    def uses_msk_iam(self) -> bool:
        """Amazon MSK with IAM: asked for, or recognized by its port when nothing else is set."""
        if self.model_fields_set & {name for name in SECURITY if getattr(self, name) is not None}:
            return self.kafka_sasl_mechanism == "AWS_MSK_IAM"
        servers = (self.kafka_bootstrap_servers or "").split(",")
        return all(server.endswith(":9098") for server in servers)

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


SECURITY = (
    "kafka_security_protocol",
    "kafka_sasl_mechanism",
    "kafka_username",
    "kafka_password",
    "kafka_ca_file",
    "kafka_certificate_file",
    "kafka_key_file",
    "kafka_key_password",
)


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
            f"{variable(str(detail['loc'][0]))} is {_shown(detail)}, but {_allowed(detail)}"
            for detail in error.errors()
        ]
    if loaded and loaded.catalog_type == "rest" and not loaded.catalog_uri:
        problems.append(
            "HEADWATER_CATALOG_URI is not set, and HEADWATER_CATALOG_TYPE=rest needs it"
        )
    if loaded:
        problems += security_problems(loaded)
    if loaded is None or problems:
        raise SettingsError(
            "\n".join(problems),
            "correct or unset the variable; .env.example lists every setting",
        )
    return loaded


def security_problems(settings: Settings) -> list[str]:
    """What is missing or contradicts itself in how Kafka is reached, each with the next step."""
    given = {variable(name): getattr(settings, name) for name in SECURITY}
    there = [name for name, value in given.items() if value not in (None, "PLAINTEXT")]
    protocol, mechanism, user, password, ca, certificate, key, key_password = given
    if there and not settings.kafka_bootstrap_servers:
        return [
            f"{', '.join(there)} is set, but HEADWATER_KAFKA_BOOTSTRAP_SERVERS is not, and the "
            "broker that `headwater up` starts has no security: name your brokers, or unset it"
        ]
    iam = settings.uses_msk_iam
    spoken = "SASL_SSL" if iam else settings.kafka_security_protocol
    sasl, tls = spoken.startswith("SASL"), spoken.endswith("SSL")
    login = settings.kafka_sasl_mechanism if not iam else None
    wrong = [
        (
            iam
            and "kafka_security_protocol" in settings.model_fields_set
            and settings.kafka_security_protocol != "SASL_SSL",
            f"{protocol} is {settings.kafka_security_protocol}, but {mechanism}=AWS_MSK_IAM needs "
            "SASL_SSL: set that, or unset it",
        ),
        (
            sasl and not iam and not login,
            f"{mechanism} is not set, and {protocol}={spoken} needs it: set it to PLAIN, "
            "SCRAM-SHA-256, SCRAM-SHA-512 or AWS_MSK_IAM",
        ),
        (
            bool(login) and not sasl,
            f"{mechanism} is {login}, but {protocol} is {spoken}: set that to SASL_SSL (or "
            f"SASL_PLAINTEXT), or unset {mechanism}",
        ),
    ]
    for name in (user, password):
        wrong += [
            (bool(login) and given[name] is None, f"{name} is not set, and {login} needs it"),
            (iam and given[name] is not None, f"{name} is set, but IAM takes AWS's own: unset it"),
            (
                not sasl and not login and given[name] is not None,
                f"{name} is set, but {protocol} is {spoken}: set that to SASL_SSL, and {mechanism}",
            ),
        ]
    for name, needed in ((certificate, key), (key, certificate), (key_password, key)):
        missing = given[name] is not None and given[needed] is None
        wrong.append((missing, f"{name} is set, but {needed} is not: set both or none"))
    for name in (ca, certificate, key):
        useless = given[name] is not None and not tls
        wrong.append(
            (useless, f"{name} is set, but {protocol} is {spoken}: set that to SSL or SASL_SSL")
        )
    problems = [text for happens, text in wrong if happens]
    for name in (ca, certificate, key):
        if given[name] is not None and (problem := _pem_problem(given[name], name == key)):
            problems.append(f"{name} is {given[name]}, {problem}")
    return problems


def _pem_problem(file: Path, is_key: bool) -> str | None:
    try:
        text = file.read_text(errors="replace")
    except OSError as error:
        return (
            f"which cannot be read ({error.strerror}): correct the path, or let this user read it"
        )
    if not is_key and "-----BEGIN CERTIFICATE-----" not in text:
        return "which holds no PEM certificate: convert it with `openssl x509 -outform PEM`"
    if is_key and not re.search("-----BEGIN ([A-Z]+ )?PRIVATE KEY-----", text):
        return "which holds no private key in PEM: convert it with `openssl pkcs8 -topk8`"
    return None


def is_secret(field: FieldInfo) -> bool:
    return "SecretStr" in str(field.annotation)


def _unknown(name: str, where: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.6)
    return f"{name} (in {where}) is not a setting" + (
        f"; did you mean {close[0]}?" if close else ""
    )


def _shown(detail: Any) -> str:
    """A refused value for a message, without what nobody should read there."""
    if is_secret(Settings.model_fields[str(detail["loc"][0])]):
        return "a secret"
    return re.sub(r"[^/,']*@", "...@", repr(detail["input"]))


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
            return str(detail["msg"]).removeprefix("Value error, ")


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


def aws_region() -> str | None:
    """The region that the standard AWS variables name."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


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
