"""Metrics of a server in the text format of Prometheus, collected when they are asked for.

`config` has the settings, `page` the text format and its limits, `endpoint` the HTTP endpoint. What
a server shows is in the server's own package: a function that fills a `page.Page`. A server with
``metricsExporterType=DISABLE`` loads the settings only.
"""
