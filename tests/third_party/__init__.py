"""A store and a broker as users write them: each passes the contract suite, and serves a guard or a worker."""
