from cometmq.broker.pop.check_points cimport CheckPoint, CheckPoints
from cometmq.broker.pop.records cimport acks_body, check_point_body, properties_of
