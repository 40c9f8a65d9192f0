"""``cometmq admin GROUP COMMAND``: manages a cluster from a terminal or a script."""
