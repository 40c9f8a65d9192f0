"""RocketMQ's wire protocol: encodes and decodes bytes, without I/O.

``frame`` and ``command`` decode frames, ``headers`` and ``bodies`` their typed parts, ``codes`` and
``version`` name numbers. ``record`` owns the layout of messages, ``lazy_record`` decodes their
fields on first access; ``batch``, ``properties``, ``compression``, ``message_id`` and ``hashing``
serve messages, too. ``header_scanner`` serves the fast paths; ``fastjson`` and ``lenient`` read the
JSON of all clients; ``subscription`` parses subscription expressions.
"""
