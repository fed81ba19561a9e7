"""Build keys: the canonical JSON of everything that could change a step's bytes, and how two keys differ.

Not in a key: absolute paths, times, host names, display names, the order of a directory listing.
"""

import hashlib
import json
from typing import Any

Content = dict[str, Any]
MISSING = "nothing"


def key_of(content: Content) -> str:
    """sha256, lower-case hex, of the canonical JSON of a key's content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def flat(content: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dicts as dotted names: `{"flags": {"IMAGE": "1"}}` → `{"flags.IMAGE": "1"}`."""
    if not isinstance(content, dict) or (prefix and not content):
        return {prefix: content}
    found: dict[str, Any] = {}
    for name, value in content.items():
        found |= flat(value, f"{prefix}.{name}" if prefix else str(name))
    return found


def shown(value: Any) -> str:
    """A value in a sentence; digests are cut to twelve places."""
    if isinstance(value, str) and len(value) == 64 and all(c in "0123456789abcdef" for c in value):
        return value[:12] + "…"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def differences(old: Content, new: Content) -> list[tuple[str, str, str]]:
    """Every name whose value differs: (name, old, new) in words, sorted by name."""
    before, after = flat(old), flat(new)
    changed = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    return [
        (
            name,
            shown(before[name]) if name in before else MISSING,
            shown(after[name]) if name in after else MISSING,
        )
        for name in changed
    ]
