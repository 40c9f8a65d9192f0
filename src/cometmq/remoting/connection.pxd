from cometmq.protocol.command cimport Command
from cometmq.remoting.exchange cimport Request, Response
