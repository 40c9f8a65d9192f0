"""Writes the files of the project that follow from its code; ``make generate`` runs it.

Each module here has a function ``files()``, which gives the paths that it writes and their texts:

    pages            pages and parts of pages about settings, commands and codes
    spark_pages      the reference of the Spark formats and checks
    states           the page about state machines
    blocking_client  the blocking client, from the asyncio client
    configuration    the files of ``conf``, and the types of the client's keywords
    dashboards       Grafana's dashboards
    prometheus_rule  the alert rules as Kubernetes has them

A test of each fails if one of its files is out of date.
"""
