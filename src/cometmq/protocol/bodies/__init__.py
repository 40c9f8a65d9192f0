"""One struct for each JSON body, by family; named as RocketMQ names its classes."""
