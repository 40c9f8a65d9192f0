"""The broker: stores messages, hands them out and keeps track of who consumes what.

`cometmq.broker.app.Broker` is the whole of it, `cometmq.broker.config.BrokerSettings` what can be
set; neither is imported here, so that the settings can be read without loading the rest.
"""
