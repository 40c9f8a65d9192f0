"""Push consumers: assigned queues, concurrent and ordered consumption."""
