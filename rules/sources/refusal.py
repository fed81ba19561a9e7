"""Why a place does not give what it was asked for; another one may."""


class Refused(Exception):
    """This place does not give the object; the reason, in words without secrets."""


class Again(Exception):
    """This place may give the object later, in `wait_s` seconds if it said so."""

    def __init__(self, what: str, wait_s: float | None = None) -> None:
        super().__init__(what)
        self.wait_s = wait_s
