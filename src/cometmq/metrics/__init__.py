"""Metrics of a server, collected when Prometheus requests them or when they are sent.

`config` has the settings, `page` the pages and their limits, `endpoint` the HTTP endpoint for
Prometheus, `push` and `otlp` what sends pages to the log or a collector. What a server shows is in
the server's own package: a function that fills a `page.Page`. A server with
``metricsExporterType=DISABLE`` loads the settings only.
"""
