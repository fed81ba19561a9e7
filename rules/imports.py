"""Imports that wait until they are needed, by one thread at a time.

Where the imports of two threads wait for each other, Python ends the deadlock by giving one of them a module
that is but half made: then a name is missing in it, now and then.
"""

import threading

alone = threading.RLock()
