"""The findings of ``cometmq doctor`` about the cluster, as of the last run."""

from cometmq.console.doctor.page import Doctor, Examine, Finding, pages

__all__ = ["Doctor", "Examine", "Finding", "pages"]
