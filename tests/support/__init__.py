"""Helpers that several kinds of tests share, in folders by subject.

- ``brokers``: brokers of ours and of RocketMQ, scripted brokers, accounts, certificates
- ``checks``: rules for whole tests: tables of cases, leaks, waiting, seeds, virtual time
- ``clients``: handlers, groups and streams of messages; verdicts on what members did
- ``controllers``: controllers and elected brokers; etcd in memory
- ``network``: links and network namespaces that fail
- ``processes``: programs as processes: servers, etcd, PostgreSQL, examples, pages
- ``runner``: the stages of ``tests/run.py``
- ``spark``: logs, topics and programs for the tests of Spark
- ``stores``: stores, and file systems that fail or lose their power
- ``wire``: frames, connections without sockets, pages of metrics
"""
