"""Replaces itself with the program of its arguments, which then dies with the test process.

Run as ``python -S die_with_parent.py program arguments…``: a test run that is killed leaves no
servers behind.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
os.execvp(sys.argv[1], sys.argv[1:])
