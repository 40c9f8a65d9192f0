"""The formats as Spark sees them: one module per data source, reader or writer."""
