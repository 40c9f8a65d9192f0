"""The broker: stores messages, delivers them and stores committed offsets.

`cometmq.broker.app.Broker` is the whole of it, `cometmq.broker.config.BrokerSettings` what can be
set; neither is imported here, so that the settings can be read without loading the rest.
"""
