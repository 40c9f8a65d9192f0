"""The consume queues: units in queues, made from the records of the log, and reads of them."""
