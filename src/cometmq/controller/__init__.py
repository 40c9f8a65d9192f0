"""The controller: broker ids, in-sync sets and elections of broker sets, kept in etcd."""
