"""Published manifests and source maps → entries of models.toml, its comments and its order kept.

What either lacks is reported. A source that stands in the catalog is history: it changes only when that is
asked for.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rules import faults
from rules.editing import catalogtext, recovered, starter
from rules.editing.catalogtext import inline
from rules.editing.published import SUPERCOMBO, Manifest, SourceMap, Table
from rules.releasing import namespace

RENAMED_BY = "v23"  # the one generation that gave IDs a suffix; from there on they are stable
SUFFIX = "3"
SUPERCOMBO_VERSION = "v15"
# What a model without a manifest entry is called until one is imported.
PLACEHOLDERS = {"version": "v11", "series": "StarPilot", "released": "2026-06-22"}
TEXTS = ("name", "version", "series", "released")
FIELDS = (*TEXTS, "community_favorite", "uses_external_gpu")
NOTE = "# placeholders: "


@dataclass
class Report:
    """What an import did, and what it could not do."""

    added: list[str] = field(default_factory=list)
    updated: dict[str, list[str]] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)  # sentences
    without_source: list[str] = field(default_factory=list)
    without_entry: list[str] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)
    recovered: list[str] = field(default_factory=list)
    claimed: dict[str, dict[str, str]] = field(default_factory=dict)
    placed: dict[str, dict[str, str]] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """The report as it is printed."""
        if self.added:
            yield f"added {len(self.added)}: {', '.join(self.added)}"
        for model_id, keys in self.updated.items():
            yield f"updated {model_id}: {', '.join(keys)}"
        yield from self.kept
        for model_id in self.recovered:
            told = ", ".join(recovered.SOURCES[model_id].fields.values())
            yield f"{model_id}: {told} (as is known of it; no manifest entry)"
        for release, ids in self.claimed.items():
            pairs = ", ".join(f"{old} → {new}" for old, new in ids.items())
            yield f"release.{release}.ids: {pairs} (else the name would depend on the order of the models)"
        for release, places in self.placed.items():
            pairs = ", ".join(f"{one} right after {anchor}" for one, anchor in places.items())
            yield f"release.{release}.after: {pairs}, or at the end"
        if self.without_source:
            yield f"no source: {', '.join(self.without_source)} (not added)"
        if self.without_entry:
            yield f"no manifest entry: {', '.join(self.without_entry)}"
        for model_id, cause in self.unusable.items():
            yield f"unusable source: {model_id}: {cause} (not added)"


@dataclass(frozen=True)
class Wishes:
    """How to import: the release of new models (None: as the map's name tells), and whether sources move."""

    release: str | None = None
    update_sources: bool = False


def run(
    catalog: Path, manifest: Manifest | None, maps: Sequence[SourceMap], wishes: Wishes, *, dry: bool
) -> Report:
    """Import into the file `catalog`, which is made when it is missing; `dry` writes nothing.

    Raises CatalogError when the result would not be a valid catalog; then nothing is written.
    """
    text, report = merged(catalogtext.read(catalog) or starter_text(), manifest, maps, wishes)
    catalogtext.write(catalog, text, dry=dry)
    return report


def starter_text() -> str:
    """The catalog that an import starts from: the maps are of models for the comma device."""
    return re.sub(r"(?m)^flags = \{.*$", 'flags = "qcom"', starter.CATALOG, count=1)


def merged(
    text: str, manifest: Manifest | None, maps: Sequence[SourceMap], wishes: Wishes
) -> tuple[str, Report]:
    """The text of a catalog with everything imported, and what was done."""
    return _Import(text, manifest or Manifest("", {}), maps, wishes).done()


class _Import:
    def __init__(self, text: str, manifest: Manifest, maps: Sequence[SourceMap], wishes: Wishes) -> None:
        self.document = catalogtext.parsed(text)
        self.manifest = manifest
        self.maps = [*maps, *([SourceMap(manifest.name, manifest.sources)] if manifest.sources else [])]
        self.wishes = wishes
        self.report = Report()
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.new: dict[str, Table] = {}
        self.changed: dict[str, Table] = {}

    def done(self) -> tuple[str, Report]:
        """Update what is there, add what is new, claim the names that would depend on the order."""
        known = self.document.get("models", {})
        for one in self.maps:
            for model_id, source in one.sources.items():
                if isinstance(source, str):
                    self.report.unusable[model_id] = source
                elif model_id in known:
                    self._compare(known[model_id], f"{model_id}: models.toml", source, one, model_id)
                elif model_id in self.new:
                    self._compare(self.new[model_id], f"{model_id}: an earlier map", source, one, model_id)
                else:
                    self._begin(model_id, source, one)
        for model_id, told in self.manifest.models.items():
            if model_id in known:
                self._update(known[model_id], told, model_id)
        self._note_gaps(known)
        return self._text(), self.report

    def _begin(self, model_id: str, source: Table, origin: SourceMap) -> None:
        if flaw := namespace.id_flaw(model_id):
            self.report.unusable[model_id] = f"not a model ID: {flaw}"
            return
        told = self.manifest.models.get(model_id, {})
        placeholders = {"name": model_id, **PLACEHOLDERS}
        if source["format"] == SUPERCOMBO:
            placeholders["version"] = SUPERCOMBO_VERSION
        if model_id in recovered.SOURCES and not told:
            placeholders |= recovered.SOURCES[model_id].fields
            self.report.recovered.append(model_id)
        fields = {key: told.get(key, placeholders.get(key)) for key in FIELDS}
        release = self.wishes.release or origin.release
        flags = flags_for(self.document, source["format"], gpu=bool(told.get("uses_external_gpu")))
        table = {**fields, "since": release, "flags": flags, "source": source}
        self.new[model_id] = {key: value for key, value in table.items() if value is not None}

    def _compare(self, table: Any, where: str, source: Table, origin: SourceMap, model_id: str) -> None:
        old = dict(table["source"])
        if _same(old, source):
            return
        if not self.wishes.update_sources:
            differ = f"{where} has {_shown(old)}, {origin.name} has {_shown(source)}"
            self.report.kept.append(f"kept {differ} (--update-sources takes it)")
            return
        # What the maps cannot tell (mirrors, paths) is of the same source only while its kind stays.
        kept = old if old.get("kind", "git" if "ref" in old else None) == source["kind"] else {}
        table["source"] = inline({**kept, **source}) if table is not self.new.get(model_id) else source
        if table is not self.new.get(model_id):
            self.report.updated.setdefault(model_id, []).append("source")

    def _update(self, table: Any, told: Table, model_id: str) -> None:
        # A manifest tells of its switches only those that are on.
        whole = {**{key: False for key in FIELDS if table.get(key) is True}, **told}
        changed = {key: whole[key] for key in FIELDS if key in whole and table.get(key) != whole[key]}
        if changed:
            self.changed[model_id] = changed
            self.report.updated.setdefault(model_id, []).extend(changed)
        if table.trivia.comment.startswith(NOTE) and all(key in told for key in TEXTS):
            table.trivia.comment = table.trivia.comment_ws = ""

    def _note_gaps(self, known: Mapping[str, Any]) -> None:
        told = self.manifest.models
        self.report.added = [
            *(one for one in told if one in self.new),
            *(one for one in self.new if one not in told),
        ]
        self.report.without_source = [one for one in told if one not in known and one not in self.new]
        mapped = dict.fromkeys(one for each in self.maps for one in each.sources)
        present = [one for one in mapped if one in known or one in self.new]
        self.report.without_entry = [one for one in present if told and one not in told]

    # ---- text

    def _text(self) -> str:
        import tomlkit

        text = tomlkit.dumps(self.document)
        for model_id, fields in self.changed.items():
            text = catalogtext.with_keys(text, ("models", model_id), fields)
        blocks = [self._block(one) for one in self.report.added]
        text = catalogtext.with_models(text, "".join(blocks).replace("\n", self.newline), self.new)
        missing = {one["since"]: None for one in self.new.values() if "since" in one}
        text = with_releases(text, list(missing))
        return self._placed(self._claimed(text))

    def _block(self, model_id: str) -> str:
        missing = [key for key in TEXTS if key not in self.manifest.models.get(model_id, {})]
        missing = [] if model_id in self.report.recovered else missing
        note = f" {NOTE}{', '.join(missing)}" if missing else ""
        return catalogtext.block(model_id, self.new[model_id], note)

    def _claimed(self, text: str) -> str:
        document = tomllib.loads(text)
        for name, release in document.get("release", {}).items():
            given = release.get("ids", {})
            suffix = release.get("suffix", "")
            found = claims(_members(document, name), version=name, suffix=suffix, explicit=given)
            if found:
                text = catalogtext.with_keys(text, ("release", name), {"ids": {**given, **found}})
                self.report.claimed[name] = found
        return text

    def _placed(self, text: str) -> str:
        """With the places of recovered models, which no manifest gives."""
        document = tomllib.loads(text)
        for name, release in document.get("release", {}).items():
            given = release.get("after", {})
            published = faults.published_ids(name, release, _members(document, name)) or {}
            wanted = [recovered.SOURCES[one] for one in self.report.recovered]
            there = [one for one in wanted if one.published in published.values()]
            found = {one.published: one.after for one in there if one.published not in given}
            if found:
                text = catalogtext.with_keys(text, ("release", name), {"after": {**given, **found}})
                self.report.placed[name] = found
        return text


def flags_for(document: Mapping[str, Any], form: str, *, gpu: bool) -> str | None:
    """The flag set of a new model, by the names this catalog gives its sets; None is the default one."""
    sets, default = document.get("flags", {}), document.get("defaults", {}).get("flags")
    if gpu:
        return "usbgpu" if "usbgpu" in sets else None
    own = f"{default}-{form}"
    return own if isinstance(default, str) and own in sets else None


def _same(old: Table, new: Table) -> bool:
    """Whether a map's source is the catalog's, which may say more (a mirror, a repository)."""
    return all(old.get(key) == value for key, value in new.items() if key != "kind")


def _shown(source: Mapping[str, Any]) -> str:
    if "ref" in source:
        return f"ref {source['ref'][:12]} ({source.get('format')})"
    return f"{source.get('kind', 'a source')} {source.get('url') or source.get('path') or ''}".strip()


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


def _members(document: Mapping[str, Any], name: str) -> list[str]:
    trail, releases = [name], document["release"]
    while (origin := releases.get(trail[-1], {}).get("from")) and origin not in trail:
        trail.append(origin)
    models = document.get("models", {})
    return [one for release in reversed(trail) for one in models if models[one].get("since") == release]


def with_releases(text: str, wanted: Sequence[str]) -> str:
    """The text with a table for each release of `wanted` that has none, built on the one before it.

    The first feeds the image history to the warp, as the v22 client does.
    """
    releases = tomllib.loads(text).get("release", {})
    newline = "\r\n" if "\r\n" in text else "\n"
    for name in sorted((one for one in wanted if one not in releases), key=lambda one: int(one[1:])):
        earlier = [one for one in releases if int(one[1:]) < int(name[1:])]
        origin = max(earlier, key=lambda one: int(one[1:]), default=None)
        lines = [f"[release.{name}]", f'from = "{origin}"' if origin else 'contract = "warp"']
        lines += [f'suffix = "{SUFFIX}"'] if name == RENAMED_BY else []
        text = text.rstrip() + newline * 2 + newline.join(lines) + newline
        releases[name] = {}
    return text
