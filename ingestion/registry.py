"""Avro schemas by their ids, from a schema registry's HTTP API."""

import json
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from ingestion.errors import HeadwaterError
from ingestion.formats import Schemas
from ingestion.settings import Settings

TIMEOUT_SECONDS = 10
NOT_FOUND = 404


class Registry:
    """Asks for each schema once: what an id names never changes."""

    def __init__(self, settings: Settings) -> None:
        if settings.schema_registry_url is None:
            raise HeadwaterError(
                "a stream has `schema: registry`, but no registry is named",
                "set HEADWATER_SCHEMA_REGISTRY_URL",
            )
        self._url = settings.schema_registry_url.rstrip("/")
        self._known: dict[int, str] = {}
        self._http = requests.Session()
        retry = Retry(3, backoff_factor=0.5, status_forcelist=(500, 502, 503, 504))
        self._http.mount("http", HTTPAdapter(max_retries=retry))
        if settings.schema_registry_username:
            password = settings.schema_registry_password
            secret = password.get_secret_value() if password else ""
            self._http.auth = (settings.schema_registry_username, secret)

    def schemas(self, ids: list[int]) -> Schemas:
        """The schemas of these ids; None for an id that the registry does not have (yet)."""
        found: dict[int, str | None] = {}
        for number in ids:
            if number not in self._known:
                answer = self._get(f"/schemas/ids/{number}")
                if answer is None:
                    found[number] = None
                    continue
                self._known[number] = json.dumps(self._whole(answer))
            found[number] = self._known[number]
        return found

    def _whole(self, answer: dict[str, Any]) -> Any:
        """A schema with the schemas that it refers to set in where they are first named."""
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":  # no Avro reader takes this; its rows say so
            return {"type": f"a {kind} schema"}
        definitions: dict[str, Any] = {}
        for one in answer.get("references", ()):
            place = f"/subjects/{one['subject']}/versions/{one['version']}"
            definitions[one["name"]] = self._whole(self._get(place) or {"schema": "null"})
        return _set_in(json.loads(answer["schema"]), definitions)

    def _get(self, path: str) -> dict[str, Any] | None:
        try:
            answer = self._http.get(self._url + path, timeout=TIMEOUT_SECONDS)
            if answer.status_code == NOT_FOUND:
                return None
            if answer.ok:
                return dict(answer.json())
            reason = f"{answer.status_code} {answer.reason}"
        except (requests.RequestException, ValueError) as error:
            reason = type(error).__name__
            raise self._away(path, reason) from error
        raise self._away(path, reason)

    def _away(self, path: str, reason: str) -> HeadwaterError:
        return HeadwaterError(
            f"the schema registry at {self._url} does not give {path}: {reason}",
            "check HEADWATER_SCHEMA_REGISTRY_URL, its user and password, and that it runs",
        )


def _set_in(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, str):
        return definitions.pop(schema, schema)
    if isinstance(schema, list):
        return [_set_in(one, definitions) for one in schema]
    return {
        key: _set_in(value, definitions) if key in ("type", "items", "values", "fields") else value
        for key, value in schema.items()
    }
