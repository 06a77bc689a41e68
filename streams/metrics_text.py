"""What `/metrics` answers: the library's text, with the lines of nodes put in where they belong, and compressed for who takes that."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted

from streams.metrics_nodes import Breath, NodeFamily

Environ = dict[str, object]
StartResponse = Callable[[str, list[tuple[str, str]]], object]

LEVEL: Final = 3
"""Of gzip, beside which other threads go on: 21 MB of nodes become 1.7 MB in 46 ms; at level 6 it is 1.5 MB in 117 ms."""


class _These:
    """Stands for a registry that has these families."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self._families


def exposed(registry: CollectorRegistry) -> Callable[[Environ, StartResponse], Iterable[bytes]]:
    """The WSGI application that answers as the library's own would if it had a sample of each line of a `NodeFamily`."""
    plain = make_wsgi_app(registry)

    def answer(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "GET":
            said: Iterable[bytes] = plain(environ, start_response)
            return said
        encoder, content_type = choose_encoder(str(environ.get("HTTP_ACCEPT", "")))
        headers = [("Content-Type", content_type)]
        names = parse_qs(str(environ.get("QUERY_STRING", ""))).get("name[]")
        families = registry.collect() if names is None else _only(registry.collect(), frozenset(names))
        body = b"".join(_written(families, encoder))
        if gzip_accepted(str(environ.get("HTTP_ACCEPT_ENCODING", ""))):
            headers.append(("Content-Encoding", "gzip"))
            body = gzip.compress(body, LEVEL, mtime=0)
        start_response("200 OK", [*headers, ("Content-Length", str(len(body)))])
        return [body]

    return answer


def _only(families: Iterable[Metric], names: Collection[str]) -> Iterator[Metric]:
    """The samples of these names. The library's way of restricting a registry leaves out whatever is only known when it is collected."""
    for family in families:
        if isinstance(family, NodeFamily):
            if family.name in names:
                yield family
        elif samples := [sample for sample in family.samples if sample.name in names]:
            part = Metric(family.name, family.documentation, family.type, family.unit)
            part.samples = samples
            yield part


def _written(families: Iterable[Metric], encoder: Callable[[Any], bytes]) -> list[bytes]:
    """The whole text. The library writes one family after the other, and each of nodes without any."""
    ends, breathe = encoder(_These()), Breath()
    texts = []
    for family in families:
        head = encoder(_These(family)).removesuffix(ends)
        texts.append(head)
        if isinstance(family, NodeFamily):
            texts.append(_named(family, head))
        breathe()
    return [*texts, ends]


def _named(family: NodeFamily, head: bytes) -> bytes:
    """The lines of a family under the name that it has in its head: of the ways to write names one doubles each underscore."""
    name, written = family.name.encode(), head.split(b" ", 3)[2]
    if written == name:
        return b"".join(family.lines)
    # A label's value has no line breaks: only a name stands after one.
    return b"".join((b"\n", *family.lines)).replace(b"\n%b{" % name, b"\n%b{" % written).removeprefix(b"\n")
