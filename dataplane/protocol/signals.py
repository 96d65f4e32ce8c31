"""Signals that a data plane process handles, apart from SIGTERM and SIGINT (stop, and keep the memory for a while), and
exit codes."""

import signal

HAND_OVER_SIGNAL = signal.SIGUSR1
"""Stop, and leave memory and sockets to the holders of their duplicates, so that the next process continues with them.
The signal kills a release that does not handle it, with the same result as `kill -9`."""
RELEASE_SIGNAL = signal.SIGUSR2
"""Stop, and release the memory."""
HANDED_OVER_EXIT_CODE = 4
"""Exit code of a data plane that ended by `HAND_OVER_SIGNAL`: its holders have the memory."""
CANNOT_ADOPT_EXIT_CODE = 3
"""Exit code of `--check-memory`: this release, with its settings, cannot adopt the memory; standard error says why."""
SETTINGS_EXIT_CODE = 2
"""Exit code of a data plane whose settings are invalid on this machine."""
