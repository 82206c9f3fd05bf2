"""Memory: one pool of pages for every kind of cache, blocks of the cache groups, and the prefix index. Others import `plait.kv.cache`."""
