"""Imports in Spark's Python daemon what each process that it forks would import anew.

A query forks several, which live for milliseconds; the imports are most of their work. Python
imports a module of this name by itself, in each process that has this folder on its path.
"""

import sys
from importlib import import_module

if "pyspark.daemon" in sys.orig_argv:
    import_module("pyspark.sql")
    for name in ("sources.log.stream", "sources.meta", "sink.spark_writers"):
        import_module(f"cometmq.spark.{name}")
