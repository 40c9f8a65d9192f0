"""Recorded data that no test reads yet, each with the reason.

A name that a test reads is an error.
"""

LATER: dict[str, str] = {}
"""Files of ``values/``."""

LATER_PARTS = {
    "misc": {
        "pop_extra_info": "the broker refuses POP requests",
        "pop_topics": "the broker refuses POP requests",
        "pop_start_offset_info": "the broker refuses POP requests",
        "pop_msg_offset_info": "the broker refuses POP requests",
    },
}
"""Parts of files of ``values/`` whose other parts are tested."""

_MQADMIN = "the command line has no commands of mqadmin"

LATER_RECORDINGS = {
    "mqadmin/4.9.8-on-5.3.3.json": _MQADMIN,
    "mqadmin/4.9.8.json": _MQADMIN,
    "mqadmin/5.3.3-on-4.9.7.json": _MQADMIN,
    "mqadmin/5.3.3.json": _MQADMIN,
    "mqadmin/options.json": _MQADMIN,
}
"""Recordings of ``ha/`` and ``mqadmin/`` by their path."""
