"""Redis, Valkey and Redis Cluster: records as hashes behind one Lua script, queues as streams."""
