"""Consumer groups: their table, its file, and the requests that create, change, show and delete."""
