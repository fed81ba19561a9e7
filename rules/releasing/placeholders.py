"""What a model without a manifest entry is called until one is imported; no release takes that for true."""

from collections.abc import Iterable

from rules.catalog import Model, Release
from rules.errors import CatalogError

PLACEHOLDERS = {"version": "v11", "series": "StarPilot", "released": "2026-06-22"}
ALLOWED = "placeholders"  # in a release's `allow`
SHOWN = 5


def bears(model: Model) -> bool:
    """Whether an import made up what users see: the ID for a name, one series and day for all."""
    made_up = (model.id, PLACEHOLDERS["series"], PLACEHOLDERS["released"])
    return (model.name, model.series, model.released) == made_up


def check(release: Release, models: Iterable[Model]) -> None:
    """Raise CatalogError, naming the models, for placeholders that a release does not allow."""
    found = [] if ALLOWED in release.allow else [model.id for model in models if bears(model)]
    if found:
        named = ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")
        raise CatalogError(
            f"release {release.name}: name, series and date of {named} are placeholders of an import",
            fix="doit import --base-manifest FILE fills them in; to publish them all the same, write"
            f' allow = ["{ALLOWED}"] under [release.{release.name}]',
        )
