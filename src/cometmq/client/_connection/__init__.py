"""Connections, routes and heartbeats of a client.

Here and in the folders beside it, ``calls`` go to brokers, and ``requests`` come from them.
"""
