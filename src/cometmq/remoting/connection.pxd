cimport cython

from cometmq.protocol.command cimport Command, command_at
from cometmq.protocol.frame cimport frame_size
from cometmq.remoting.exchange cimport Request, Response
