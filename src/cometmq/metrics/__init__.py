"""Metrics of a server, collected when Prometheus requests them or when they are sent.

`config` has the settings and `page` the pages and their limits. `exporter` starts what shows them:
`endpoint` for Prometheus, or `push` and `otlp`, which send pages to the log or a collector. What a
server shows is in the server's own package: a function that fills a `page.Page`. A server with
``metricsExporterType=DISABLE`` loads the settings only.
"""
