"""The requests that show and change the settings of a running broker."""
