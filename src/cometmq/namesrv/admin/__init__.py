"""Settings that change at run time."""
