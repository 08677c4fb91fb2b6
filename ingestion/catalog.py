"""The Iceberg catalog as Python sees it: the same tables as Spark's, and no JVM."""

from typing import TYPE_CHECKING

from ingestion.errors import HeadwaterError
from ingestion.settings import Settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

CATALOG = "lake"  # Spark's name for it, too: the embedded catalog keeps it in its rows
# PyHive and dbt say USE `default` when they connect.
NAMESPACES = ("default", "bronze", "silver", "gold")


def open_catalog(settings: Settings) -> "Catalog":
    # Imported here, since they take a second, and commands that open no catalog start without it.
    from pyiceberg.catalog import load_catalog

    from ingestion.embedded_catalog import EmbeddedCatalog

    properties = {"warehouse": settings.warehouse_location}
    if settings.s3_endpoint:
        properties["s3.endpoint"] = settings.s3_endpoint
    try:
        if settings.catalog_type == "embedded":
            settings.catalog_db.parent.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{settings.catalog_db}?timeout=30"
            return EmbeddedCatalog(CATALOG, **properties, uri=uri)
        return load_catalog(CATALOG, **properties, type="rest", uri=settings.catalog_uri or "")
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
