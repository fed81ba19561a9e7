"""Minding the parent: nobody wants the result of a process whose starter is gone."""

import os
import signal

CHECK_S = 0.5
ABANDONED = 130


def mind(starter: int) -> None:
    """Stop soon after `starter`, the process that started this one, is gone; a forked child calls it for
    itself. Its number is told: whoever asks for his parent may have got another one already.

    Asking now and then, by a timer, needs no thread, so that a process may fork; and it breaks into a write
    on a pipe that nobody reads any more.
    """

    def ask(*_: object) -> None:
        if os.getppid() != starter:
            os._exit(ABANDONED)

    ask()
    signal.signal(signal.SIGALRM, ask)
    signal.setitimer(signal.ITIMER_REAL, CHECK_S, CHECK_S)


def no_longer() -> None:
    """While Python shuts down its handlers are gone already, and an alarm would kill the process."""
    signal.setitimer(signal.ITIMER_REAL, 0)
