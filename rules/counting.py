"""How many of something, in words."""


def counted(number: int, one: str, many: str = "") -> str:
    """`1 step`, `2 steps`, `1,234 bytes`; `many` is the plural where it is not `one` and an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
