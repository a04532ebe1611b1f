"""The registry of workers in etcd: a worker announces itself there, clients find it there."""
