cimport cython

from cometmq.protocol.command cimport Command, command_at
from cometmq.remoting.exchange cimport Request, Response
