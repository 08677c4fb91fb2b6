"""A schema registry's HTTP API, as far as a reader needs it, on a real loopback server."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto


def protobuf_answer(
    file: FileDescriptorProto, serialized: bool = True, **more: Any
) -> dict[str, Any]:
    text = base64.b64encode(file.SerializeToString()).decode() if serialized else None
    return {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3";', "serialized": text, **more}


class RegistryServer(ThreadingHTTPServer):
    def __init__(self, login: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[tuple[str, int], dict[str, Any]] = {}
        self.asked: list[str] = []
        self.login = login
        self.broken = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def register(self, number: int, schema: Any, **more: Any) -> None:
        self.schemas[number] = {"schema": json.dumps(schema), **more}

    def register_file(
        self, number: int, file: FileDescriptorProto, serialized: bool = True, **more: Any
    ) -> None:
        """A Protobuf file, which an older registry has as its .proto text only."""
        self.schemas[number] = protobuf_answer(file, serialized, **more)


class Handler(BaseHTTPRequestHandler):
    server: RegistryServer

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.server.broken:
            return self._answer(503, {"error_code": 50001})
        if self.server.login:
            expected = "Basic " + base64.b64encode(self.server.login.encode()).decode()
            if self.headers.get("Authorization") != expected:
                return self._answer(401, {"error_code": 401})
        path, _, query = self.path.partition("?")
        match path.strip("/").split("/"):
            case ["schemas", "ids", number]:
                found = self.server.schemas.get(int(number))
            case ["subjects", subject, "versions", version]:
                found = self.server.subjects.get((subject, int(version)))
            case _:
                found = None
        if found is None:
            return self._answer(404, {"error_code": 40403, "message": "Schema not found"})
        answer = {key: value for key, value in found.items() if key != "serialized"}
        if "format=serialized" in query and found.get("serialized"):
            answer["schema"] = found["serialized"]
        return self._answer(200, answer)

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def registry_server(login: str | None = None) -> Iterator[RegistryServer]:
    with RegistryServer(login) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()
