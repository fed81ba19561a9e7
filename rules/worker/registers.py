"""tinygrad's registers, their hashes remembered.

Its X86 renderer tags every instruction with registers, each of which holds all those that could stand in for
it. Instructions are found by their hash, over and over: a fifth of lowering was hashing the same registers.
"""

from tinygrad.renderer.isa import Register

HASH = "_hash"
of_all_fields = Register.__hash__


def remember_hashes() -> None:
    """From here on, compute the hash of a register once. What a pickle holds of it stays as it was."""
    Register.__hash__ = _remembered
    Register.__getstate__ = _state


def _remembered(register: Register) -> int:
    known = register.__dict__
    if (value := known.get(HASH)) is None:
        value = known[HASH] = of_all_fields(register)
    return int(value)


def _state(register: Register) -> dict[str, object]:
    return {name: value for name, value in register.__dict__.items() if name != HASH}
