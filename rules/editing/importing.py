"""Published manifests and source maps → entries of models.toml, its comments and its order kept.

What either lacks is reported. A source that stands in the catalog is history: it changes only when that is
asked for.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rules import faults
from rules.counting import counted
from rules.editing import catalogtext, recovered, releases, starter
from rules.editing.catalogtext import inline
from rules.editing.published import SUPERCOMBO, Manifest, SourceMap, Table
from rules.errors import SourceError
from rules.networks import behaviour
from rules.releasing import namespace
from rules.releasing.placeholders import PLACEHOLDERS
from rules.url import shown

TEXTS = ("name", "version", "series", "released")
FIELDS = (*TEXTS, "community_favorite", "uses_external_gpu")
NOTE = "# placeholders: "
# A repository that is none: a host of the names that are kept for examples, or a word to be replaced.
PLACEHOLDER = re.compile(
    r"(?i)\bexample(\.(com|net|org))?([/:]|$)|\.(invalid|test)([/:]|$)|[<>…]|^(url|path|todo)\b"
)
SHOWN = 8  # models that one line of a report names


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
    published: list[str] = field(default_factory=list)  # sentences
    placeholders: dict[str, list[str]] = field(default_factory=dict)  # models by the fields made up for them
    flags: list[str] = field(default_factory=list)  # the sets that what was added is compiled with
    homeless: list[str] = field(default_factory=list)  # models whose commit is in no repository that is named

    def steps(self, catalog: object) -> Iterator[str]:
        """What is left to do after models were added, in order; nothing where none was."""
        if self.homeless:
            yield homeless_line(self.homeless, catalog)
        if self.added:
            compare = "; ".join(f"doit flags {one} --against SCRIPT" for one in self.flags)
            yield f"compare the flags with your runtime's build script: {compare}"
        if made_up := dict.fromkeys(one for ids in self.placeholders.values() for one in ids):
            models = counted(len(made_up), "model")
            yield f"fill in what the maps do not tell of {models}: doit import --base-manifest FILE"
        if self.added:
            yield f"build one: doit pkl:{self.added[0]}"

    def lines(self) -> Iterator[str]:
        """The report as it is printed."""
        yield from self.published
        if self.added:
            yield f"added {len(self.added)}: {', '.join(self.added)}"
        for gaps, made_up in self.placeholders.items():
            yield f"placeholders: {gaps} of {_some(made_up)}"
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


def _some(ids: Sequence[str]) -> str:
    more = f" and {counted(len(ids) - SHOWN, 'more model')}" if len(ids) > SHOWN else ""
    return ", ".join(ids[:SHOWN]) + more


@dataclass(frozen=True)
class Wishes:
    """How to import: the release of new models (None: as the map's name tells), and whether sources move."""

    release: str | None = None
    update_sources: bool = False


def run(
    catalog: Path, manifest: Manifest | None, maps: Sequence[SourceMap], wishes: Wishes, *, dry: bool
) -> Report:
    """Import into the file `catalog`, which is made when it is missing; `dry` writes nothing.

    Raises CatalogError when the result would not be a valid catalog, SourceError when a new one would hold
    nothing; then nothing is written.
    """
    there = catalogtext.editable(catalog)
    text, report = merged(there or starter_text(), manifest, maps, wishes)
    if not there and not report.added:
        first = next((f"{one}: {why}" for one, why in report.unusable.items()), "no source map was named")
        raise SourceError(
            f"{catalog.name} is not there yet, and no model can be added to it: {first}",
            fix="doit import --source-map FILE tells where models come from",
        )
    catalogtext.write(catalog, text, dry=dry)
    written = [*report.added, *(one for one, keys in report.updated.items() if "source" in keys)]
    document = tomllib.loads(text)
    report.homeless = homeless(document, written)
    default = document["defaults"].get("flags")
    used = [document["models"][one].get("flags", default) for one in report.added]
    report.flags = list(dict.fromkeys(one for one in used if isinstance(one, str)))
    return report


def homeless(document: Mapping[str, Any], ids: Iterable[str]) -> list[str]:
    """Those of `ids` whose source is a commit and for which neither it nor the catalog names a repository."""
    named = str(document["defaults"].get("repository", ""))
    if named and not PLACEHOLDER.search(named):
        return []
    sources = {one: document["models"][one]["source"] for one in ids}
    return [one for one, source in sources.items() if "ref" in source and "repository" not in source]


def homeless_line(ids: Sequence[str], catalog: object) -> str:
    """What to type so that the commits of these models can be fetched."""
    return (
        f"no repository is named for the {counted(len(ids), 'git source')} of {_some(ids)}: "
        f'under [defaults] in {catalog}, write repository = "URL or folder of the fork"'
    )


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
        self.wishes = wishes
        self.report = Report()
        self.manifest, self.maps = self._by_own_names(text, manifest, maps)
        if self.manifest.sources:
            self.maps.append(SourceMap(manifest.name, self.manifest.sources))
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

    def _by_own_names(
        self, text: str, manifest: Manifest, maps: Sequence[SourceMap]
    ) -> tuple[Manifest, list[SourceMap]]:
        """Both with the catalog's IDs where they hold a release's published names, which is told."""
        since = {one: table.get("since") for one, table in self.document.get("models", {}).items()}
        renamed = []
        for one in maps:
            sources = self._own(one.name, one.sources, since, releases.published_names(text, since))
            renamed.append(SourceMap(one.name, sources))
            since = {**dict.fromkeys(sources, self.wishes.release or one.release), **since}
        told = self._own(manifest.name, manifest.models, since, releases.published_names(text, since))
        return Manifest(manifest.name, told, manifest.sources), renamed

    def _own(
        self,
        name: str,
        rows: Mapping[str, Any],
        known: Iterable[str],
        namespaces: Mapping[str, releases.Names],
    ) -> dict[str, Any]:
        release, ids = releases.best(namespaces, rows, known)
        renamed = {one: ids[one] for one in rows if one in ids}
        if renamed:
            pairs = ", ".join(f"{new} is {old}" for new, old in list(renamed.items())[:3])
            more = ", …" if len(renamed) > 3 else ""
            entries = counted(len(renamed), "entry", "entries")
            told = f"{name}: {entries} under published names of release {release} ({pairs}{more})"
            self.report.published.append(told)
        found = {old: rows[new] for new, old in renamed.items()}
        return {**found, **{one: row for one, row in rows.items() if one not in ids and one not in found}}

    def _begin(self, model_id: str, source: Table, origin: SourceMap) -> None:
        if flaw := namespace.id_flaw(model_id):
            self.report.unusable[model_id] = f"not a model ID: {flaw}"
            return
        told = self.manifest.models.get(model_id, {})
        placeholders = {"name": model_id, **PLACEHOLDERS}
        if source["format"] == SUPERCOMBO:
            placeholders["version"] = behaviour.SUPERCOMBO
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
        for one in self.report.added:
            if missing := self._missing(one):
                self.report.placeholders.setdefault(", ".join(missing), []).append(one)

    def _missing(self, model_id: str) -> list[str]:
        if model_id in self.report.recovered:
            return []
        return [key for key in TEXTS if key not in self.manifest.models.get(model_id, {})]

    # ---- text

    def _text(self) -> str:
        import tomlkit

        text = tomlkit.dumps(self.document)
        for model_id, fields in self.changed.items():
            text = catalogtext.with_keys(text, ("models", model_id), fields)
        blocks = [self._block(one) for one in self.report.added]
        text = catalogtext.with_models(text, "".join(blocks).replace("\n", self.newline), self.new)
        missing = {one["since"]: None for one in self.new.values() if "since" in one}
        text = releases.with_releases(text, list(missing))
        return self._placed(self._claimed(text))

    def _block(self, model_id: str) -> str:
        missing = self._missing(model_id)
        note = f" {NOTE}{', '.join(missing)}" if missing else ""
        return catalogtext.block(model_id, self.new[model_id], note)

    def _claimed(self, text: str) -> str:
        document = tomllib.loads(text)
        for name, release in document.get("release", {}).items():
            given = release.get("ids", {})
            suffix = release.get("suffix", "")
            found = releases.claims(
                releases.members(document, name), version=name, suffix=suffix, explicit=given
            )
            if found:
                text = catalogtext.with_keys(text, ("release", name), {"ids": {**given, **found}})
                self.report.claimed[name] = found
        return text

    def _placed(self, text: str) -> str:
        """With the places of recovered models, which no manifest gives."""
        document = tomllib.loads(text)
        for name, release in document.get("release", {}).items():
            given = release.get("after", {})
            published = faults.published_ids(name, release, releases.members(document, name)) or {}
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
    return f"{source.get('kind', 'a source')} {shown(source.get('url') or source.get('path') or '')}".strip()
