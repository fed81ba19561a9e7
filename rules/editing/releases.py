"""The releases of a catalog that is being edited: which models they hold, and what they call them."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rules import faults, flags

RENAMED_BY = "v23"  # the one generation that gave IDs a suffix; from there on they are stable
SUFFIX = "3"
PARTS = "always"

Names = Mapping[str, str]  # model ID by published name


def members(document: Mapping[str, Any], name: str) -> list[str]:
    """The IDs of the models that a release holds, its origin's first, as `Catalog.members` has them."""
    trail, releases = [name], document["release"]
    while (origin := releases.get(trail[-1], {}).get("from")) and origin not in trail:
        trail.append(origin)
    models = document.get("models", {})
    return [one for release in reversed(trail) for one in models if models[one].get("since") == release]


def claims(ids: Sequence[str], *, version: str, suffix: str, explicit: Mapping[str, str]) -> dict[str, str]:
    """Names that must stand in a release's `ids`, lest two models want one name; see `namespace.rename`.

    An ID whose suffixed name is another's ID would take the version's name, which is the suffixed name of a
    third: it claims its own suffixed name, since a release is a namespace of its own.
    """
    if not suffix:
        return {}
    plain, taken = {old + suffix: old for old in ids}, set(explicit.values())
    return {
        old: old + suffix
        for old in ids
        if old not in explicit
        and old + suffix in ids
        and old + version in plain
        and old + suffix not in taken
    }


def published_names(text: str, since: Mapping[str, str | None]) -> dict[str, Names]:
    """For each release of the catalog that renames, or that models of `since` will need: name → model ID."""
    known = {one for one in since.values() if one}
    releases = tomllib.loads(with_releases(text, sorted(known))).get("release", {})
    document = {"release": releases, "models": {one: {"since": name} for one, name in since.items()}}
    found: dict[str, Names] = {}
    for name, release in releases.items():
        ids, suffix, given = members(document, name), release.get("suffix", ""), release.get("ids", {})
        if suffix:
            explicit = {**given, **claims(ids, version=name, suffix=suffix, explicit=given)}
            renamed = faults.published_ids(name, {**release, "ids": explicit}, ids) or {}
            found[name] = {new: old for old, new in renamed.items()}
    return found


def best(namespaces: Mapping[str, Names], rows: Iterable[str], own: Iterable[str]) -> tuple[str, Names]:
    """The release whose names most of `rows` are; none where more of them are the catalog's `own` IDs.

    A name may be both: `deeprl33` is a model, and what a release calls `deeprl3`.
    """
    names, plain = set(rows), set(own)
    best = max(namespaces, key=lambda one: len(names & set(namespaces[one])), default="")
    if best and len(names & set(namespaces[best])) > len(names & plain):
        return best, namespaces[best]
    return "", {}


def with_releases(text: str, wanted: Sequence[str]) -> str:
    """The text with a table for each release of `wanted` that has none, built on the one before it.

    The first feeds the image history to the warp, as the v22 client does. Where no earlier one says which
    artifacts are in parts, all are: that client verifies nothing that it takes whole.
    """
    releases = tomllib.loads(text).get("release", {})
    newline = "\r\n" if "\r\n" in text else "\n"
    for name in sorted((one for one in wanted if one not in releases), key=lambda one: int(one[1:])):
        earlier = [one for one in releases if int(one[1:]) < int(name[1:])]
        origin = max(earlier, key=lambda one: int(one[1:]), default=None)
        lines = [f"[release.{name}]", f'from = "{origin}"' if origin else 'contract = "warp"']
        lines += [f'suffix = "{SUFFIX}"'] if name == RENAMED_BY else []
        known = origin and flags.inherited(releases, origin, "from", "parts")
        lines += [] if known else [f'parts = "{PARTS}"']
        text = text.rstrip() + newline * 2 + newline.join(lines) + newline
        releases[name] = {"from": origin, "parts": known or PARTS}
    return text
