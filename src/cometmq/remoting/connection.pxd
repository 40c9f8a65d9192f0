from cometmq.protocol.command cimport Command
from cometmq.remoting.requests cimport Request, Response
