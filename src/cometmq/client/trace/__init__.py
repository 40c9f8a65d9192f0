"""Traces: sends and deliveries of each message, recorded in a topic that can be queried."""

from cometmq.client.trace.dispatcher import (
    ConsumeTrace,
    EndTrace,
    SendTrace,
    TraceDispatcher,
    trace_recall,
)
from cometmq.client.trace.records import (
    ConsumeAfter,
    ConsumeBefore,
    EndTransaction,
    Publish,
    Recall,
    Record,
    decode_records,
    encode_trace_record,
)

__all__ = [
    "TraceDispatcher",
    "SendTrace",
    "ConsumeTrace",
    "EndTrace",
    "trace_recall",
    "Record",
    "Publish",
    "ConsumeBefore",
    "ConsumeAfter",
    "EndTransaction",
    "Recall",
    "encode_trace_record",
    "decode_records",
]
