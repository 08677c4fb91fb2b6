"""The Spark Thrift server: how it is configured and started.

Ingestion commits its files by itself; this server runs the SQL of dbt and of everyone else, so it
has Iceberg's jars, its catalog and its extensions.
"""

from pathlib import Path

from headwater.local.jars import classpath, ensure_jars, spark_sets
from ingestion.catalog import CATALOG
from ingestion.settings import LOOPBACK, Settings
from ingestion.spark import spark_properties, write_properties
from ingestion.spark_home import pyspark_home

# Spark makes one method of a whole stage, and Java leaves methods of more than 8,000 bytes to its
# interpreter.
LARGE_METHODS = "-XX:-DontCompileHugeMethods"
# Spark compiles new classes for each query. With the first compiler alone Java sets 48 MB aside for
# compiled code; a large build fills them, and Spark ends ("Out of space in CodeCache").
CODE_CACHE = "-XX:ReservedCodeCacheSize=512m"
# A statement of a first `dbt build` meets a cold JVM: the second compiler would take the cores from
# the queries, and pays off only after several builds. docs/decisions/0002 has the figures.
FAST_START = f"-XX:TieredStopAtLevel=1 -XX:+UseParallelGC {LARGE_METHODS} {CODE_CACHE}"


def thrift_command(settings: Settings, folder: Path, log: Path) -> list[str]:
    """The command that starts the server. Its configuration is written into the folder."""
    jars = classpath(ensure_jars(settings, spark_sets(settings)))
    properties = spark_properties(settings, log, FAST_START) | iceberg_properties(settings, jars)
    properties |= {
        "spark.app.name": "headwater thrift",
        "spark.hadoop.hive.server2.thrift.port": str(settings.thrift_port),
        "spark.hadoop.hive.server2.thrift.bind.host": LOOPBACK,
    }
    file = write_properties(folder, properties)
    return [
        *(str(pyspark_home() / "bin" / "spark-submit"), "--properties-file", str(file)),
        *("--class", "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"),
        *("--name", "headwater thrift", "spark-internal"),
    ]


def iceberg_properties(settings: Settings, jars: str) -> dict[str, str]:
    """What a Spark process needs to read and write Iceberg tables in SQL."""
    return {
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.defaultCatalog": CATALOG,
        # No session brings classes of its own. With this on, each class that Spark's code generator
        # looks for is asked for over the network, too: a sixth of the CPU of an incremental build.
        "spark.sql.artifact.isolation.enabled": "false",
        # Small stages are the rule here; adaptive execution joins what is too small.
        "spark.sql.shuffle.partitions": "8",
        **_catalog(settings),
    }


def _catalog(settings: Settings) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{CATALOG}"
    properties = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.warehouse": settings.warehouse_location,
        # A cached table would hide the commits of other processes.
        f"{prefix}.cache-enabled": "false",
    }
    if settings.catalog_type == "embedded":
        properties |= {
            f"{prefix}.type": "jdbc",
            f"{prefix}.uri": f"jdbc:sqlite:file:{settings.catalog_db}?busy_timeout=30000",
            f"{prefix}.jdbc.schema-version": "V1",
        }
    else:
        properties |= {f"{prefix}.type": "rest", f"{prefix}.uri": settings.catalog_uri or ""}
    if settings.warehouse_location.startswith("s3"):
        properties[f"{prefix}.io-impl"] = "org.apache.iceberg.aws.s3.S3FileIO"
        if settings.s3_endpoint:
            properties |= {
                f"{prefix}.s3.endpoint": settings.s3_endpoint,
                f"{prefix}.s3.path-style-access": "true",
            }
    return properties
