"""New IDs for a release, and their order: names move to a namespace of their own, bytes do not change."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from rules.errors import CatalogError
from rules.keeping.files import DEVICE

ID_PATTERN = r"^[a-z0-9][a-z0-9_-]*$"
SWEPT = "_driving_"

_ID = re.compile(ID_PATTERN.rstrip("$"))
_SUFFIX = re.compile(r"[a-z0-9_-]+")
_VERSION = re.compile(r"v[1-9][0-9]*")


def id_flaw(text: str) -> str:
    """What a client would stumble over in the model ID `text`; empty when nothing."""
    if not _ID.fullmatch(text):
        return f"expected {ID_PATTERN}, got {text!r}"
    if SWEPT in text:
        return f"expected no {SWEPT!r} (the client's sweep deletes such files), got {text!r}"
    if DEVICE.fullmatch(text):
        return f"expected no name of a Windows device, under which no file can be made, got {text!r}"
    return ""


def rename(ids: Sequence[str], *, version: str, suffix: str, explicit: Mapping[str, str]) -> dict[str, str]:
    """Map each of `ids` to its ID in release `version`, in the order of `ids`.

    `explicit` names come first. A derived name is the old ID and `suffix`; where that is a source ID,
    the old ID and `version`; while that is a source ID or an explicit name, an underscore is added.
    Names are derived from the old IDs only, so the mapping never cascades. Raises CatalogError for a bad
    name, and when two models want one name: which of them got it would depend on their order.
    """
    key = f"models.toml: release.{version}.ids"
    _check_form(key, version, suffix)
    _check_sources(key, ids)
    _check_explicit(key, ids, explicit)
    taken = {*ids, *explicit.values()}
    names = {
        old: explicit[old] if old in explicit else _derive(old, version, suffix, set(ids), taken)
        for old in ids
    }
    _check_contest(version, suffix, names, explicit)
    for old, new in names.items():
        _check_id(f"{key}.{old}", new)
    return names


def placed(ids: Sequence[str], after: Mapping[str, str]) -> list[str]:
    """`ids` in order, each that `after` names right behind its anchor, or at the end where that is no ID.

    Several behind one anchor keep their order. `after` must hold no cycle.
    """
    here = set(ids)
    followers: dict[str, list[str]] = {}
    for one in ids:
        if after.get(one) in here:
            followers.setdefault(after[one], []).append(one)
    heads = [one for one in ids if one not in after] + [one for one in ids if after.get(one, one) not in here]
    listed: list[str] = []
    waiting = heads[::-1]
    while waiting:
        one = waiting.pop()
        listed.append(one)
        waiting += reversed(followers.get(one, []))
    return listed


def _derive(old: str, version: str, suffix: str, sources: set[str], taken: set[str]) -> str:
    name = old + suffix
    if name in sources:
        name = old + version
    while name in taken:
        name += "_"
    return name


def _check_id(key: str, text: str) -> None:
    if flaw := id_flaw(text):
        raise CatalogError(f"{key}: not a model ID: {flaw}", fix="use a to z, 0 to 9, '-' and '_'")


def _check_form(key: str, version: str, suffix: str) -> None:
    if not _VERSION.fullmatch(version):
        raise CatalogError(f"{key}: not a release: expected v and a number, got {version!r}")
    if not _SUFFIX.fullmatch(suffix):
        raise CatalogError(
            f"{key}: a bad suffix: expected one or more of a to z, 0 to 9, '-' and '_', got {suffix!r}",
            fix=f'in [release.{version}], write suffix = "{version[-1:]}"',
        )


def _check_sources(key: str, ids: Sequence[str]) -> None:
    for old in ids:
        _check_id(key, old)
    if twice := _twice(ids):
        raise CatalogError(
            f"{key}: '{twice}' is listed twice: expected each ID once", fix=f"remove one '{twice}'"
        )


def _check_explicit(key: str, ids: Sequence[str], explicit: Mapping[str, str]) -> None:
    for old in sorted(explicit):
        if old not in ids:
            raise CatalogError(
                f"{key}.{old}: no such model: expected an ID of this release, got '{old}'",
                fix=_nearest(old, ids),
            )
        _check_id(f"{key}.{old}", explicit[old])
    if twice := _twice(explicit.values()):
        both = " and ".join(f"'{old}'" for old in sorted(explicit) if explicit[old] == twice)
        raise CatalogError(f"{key}: {both} are both named '{twice}'", fix="give each a name of its own")


def _nearest(old: str, ids: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(old, sorted(ids), n=1)
    return f"did you mean '{near[0]}'?" if near else "remove the entry, or add the model to the release"


def _twice(names: Iterable[str]) -> str:
    """The first name, in alphabetical order, that stands in `names` twice; empty when none does."""
    ordered = sorted(names)
    return next((one for one, following in pairwise(ordered) if one == following), "")


def _check_contest(version: str, suffix: str, names: Mapping[str, str], explicit: Mapping[str, str]) -> None:
    contested = _twice(names.values())
    if not contested:
        return
    rivals = sorted(old for old, new in names.items() if new == contested)
    # The one that lost its plain name moves: the other keeps the name that a reader expects.
    mover = next((old for old in rivals if old + suffix != contested), rivals[0])
    line = {**explicit, mover: _free(mover, version, suffix, set(names.values()))}
    both = " and ".join(f"'{old}'" for old in rivals)
    entries = ", ".join(f'"{old}" = "{new}"' for old, new in line.items())
    raise CatalogError(
        f"models.toml: release.{version}.ids: {both} both become "
        f"'{contested}': expected names that do not depend on the order of the catalog",
        fix=f"add the line: [release.{version}] ids = {{ {entries} }}",
    )


def _free(old: str, version: str, suffix: str, targets: set[str]) -> str:
    """A name for `old` that no model is given; a source ID may serve, as releases are separate namespaces."""
    if old + suffix not in targets:
        return old + suffix
    name = old + version
    while name in targets:
        name += "_"
    return name
