"""The Iceberg catalog as Python sees it: the same tables as Spark's, and no JVM."""

from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError
from headwater.settings import Settings
from headwater.spark import CATALOG

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

# PyHive and dbt say USE `default` when they connect.
NAMESPACES = ("default", "bronze", "silver", "gold")


def open_catalog(settings: Settings) -> "Catalog":
    from pyiceberg.catalog import load_catalog

    properties = {"warehouse": settings.warehouse_location}
    if settings.catalog_type == "embedded":
        settings.catalog_db.parent.mkdir(parents=True, exist_ok=True)
        properties |= {"type": "sql", "uri": f"sqlite:///{settings.catalog_db}?timeout=30"}
    else:
        properties |= {"type": "rest", "uri": settings.catalog_uri or ""}
    if settings.s3_endpoint:
        properties["s3.endpoint"] = settings.s3_endpoint
    try:
        return load_catalog(CATALOG, **properties)
    except Exception as error:
        # pyiceberg lets the errors of each catalog's own library through.
        where = settings.catalog_uri or settings.catalog_db
        raise HeadwaterError(
            f"the catalog at {where} does not answer: {str(error).splitlines()[0]}",
            "check HEADWATER_CATALOG_TYPE, HEADWATER_CATALOG_URI and HEADWATER_HOME",
        ) from error


def ensure_namespaces(settings: Settings) -> None:
    catalog = open_catalog(settings)
    for namespace in NAMESPACES:
        catalog.create_namespace_if_not_exists(namespace)
