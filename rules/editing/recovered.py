"""What is known of recovered sources although no source map tells it, and manifests of their time did not."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Recovered:
    """A model's fields of the manifest, its published ID, and the published ID that it stands after."""

    fields: Mapping[str, str]
    published: str
    after: str


SOURCES: Mapping[str, Recovered] = {
    "rdf2": Recovered(
        {
            "name": "Regret Driven Framework V2 👀📡",
            "version": "v15",
            "series": "OP Series",
            "released": "2026-08-10",
        },
        published="rdf23",
        after="rdfv23",
    )
}
