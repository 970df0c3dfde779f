"""A client of the OpenAI-compatible API that needs the standard library only."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any


class RequestFailed(RuntimeError):
    """The server answered with an error; the message holds the status and the start of the body."""


class Client:
    """Requests to one server.

    Args:
        url: without a trailing slash, `http://127.0.0.1:8000`.
        timeout: seconds for one request.
    """

    def __init__(self, url: str, timeout: float = 120.0) -> None:
        self.url = url
        self.timeout = timeout

    def get(self, path: str) -> Any:
        """The decoded JSON answer of a GET."""
        return self._json(urllib.request.Request(self.url + path))

    def text(self, path: str) -> str:
        """The body of a GET as text."""
        with self._open(urllib.request.Request(self.url + path)) as answer:
            return answer.read().decode()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The decoded JSON answer of a POST."""
        return self._json(self._request(path, body))

    def model(self) -> str:
        """The name the server gives its model."""
        name: str = self.get("/v1/models")["data"][0]["id"]
        return name

    @contextmanager
    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Iterator[Any]]:
        """Decoded events of a streamed answer; leaving early closes the connection."""
        with self._open(self._request(path, {**body, "stream": True})) as answer:
            yield _events(answer)

    def _request(self, path: str, body: Mapping[str, Any]) -> urllib.request.Request:
        headers = {"Content-Type": "application/json"}
        return urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)

    def _json(self, request: urllib.request.Request) -> Any:
        with self._open(request) as answer:
            return json.load(answer)

    def _open(self, request: urllib.request.Request) -> HTTPResponse:
        try:
            answer: HTTPResponse = urllib.request.urlopen(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            text = error.read(500).decode(errors="replace")
            raise RequestFailed(f"{request.full_url} answered {error.code}: {text}") from error
        except OSError as error:
            raise RequestFailed(f"{request.full_url} did not answer: {error}") from error
        return answer


def _events(answer: HTTPResponse) -> Iterator[Any]:
    for line in answer:
        text = line.decode().strip()
        if text == "data: [DONE]":
            return
        if text.startswith("data: "):
            yield json.loads(text.removeprefix("data: "))
