"""Push consumers: assigned queues and their pulls, concurrent and ordered consumption."""
