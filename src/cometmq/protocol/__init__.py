"""RocketMQ's wire protocol in plain objects: bytes in, values out, and back; no I/O.

``frame`` and ``command`` cut and read what travels, ``headers`` and ``bodies`` type its parts,
``codes`` and ``version`` name its numbers. ``record``, ``batch``, ``properties``, ``compression``,
``message_id`` and ``hashing`` are about messages; ``fastjson`` and ``lenient`` read the JSON of all
clients; ``subscription`` parses subscription expressions.
"""
