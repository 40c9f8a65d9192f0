"""An order service: an API takes orders, a worker bills, reminds and ships.

settings      what environment variables say
messages      topics, and what their messages contain
models        tables, and changes of an order
bus           the broker
api           HTTP: place, pay, look up
worker        the handlers
outbox        sends the events that changes have written
dead_letters  a page on which a person decides over failed messages
telemetry     sends traces and metrics; dashboard shows them
"""
