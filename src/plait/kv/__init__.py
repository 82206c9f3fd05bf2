"""Memory: one pool of pages for every kind of cache, its blocks and the prefix index. Others see `plait.kv.cache`."""
