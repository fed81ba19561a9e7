"""From where a result that a build key once gave may be taken instead of making it anew."""

from typing import NamedTuple


class Reuse(NamedTuple):
    """Whether it may come from this workspace's own store, from a remote one when somebody trusted signed it,
    and from a remote one anyhow. `why` tells what refuses the last, where that depends on the machine."""

    own: bool = True
    signed: bool = True
    unsigned: bool = True
    why: str = ""


ANYWHERE, SIGNED, NOWHERE = Reuse(), Reuse(unsigned=False), Reuse(False, False, False)
