"""Serves the official clients of RocketMQ 5, which speak gRPC; it needs the extra ``grpc``.

A proxy is a client of the brokers, of CometMQ or of RocketMQ 5, for each of its own clients:

    service                            the requests, as gRPC calls them
     │
    telemetry · sending · receiving    settings and commands · producers · consumers, renewals
     │
    topics                             routes, assignments, settings of topics and groups
     │
    clients                            each client, with its connections to the brokers
     │
    conversion · checks                messages as brokers store them · what requests may contain
     │
    status
     │
    messages                           the classes of ``messages.proto``
"""
